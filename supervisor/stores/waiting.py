"""Why a job does not run: one sentence for people, from the job and the status as the store has them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

from supervisor.events import SinkMissing
from supervisor.jobs import JobState
from supervisor.retry import SOLE_SUSPECT, SUSPECT
from supervisor.stores.problems import (
    Present,
    Row,
    lacks_handler,
    limit_of,
    look_at,
    missing_handler,
    name_of,
    no_supervisor,
    paused,
    ttl_of,
    unserved,
)
from supervisor.stores.protocol import Store
from supervisor.stores.workflows import waits_for_parents
from supervisor.text.units import counted, format_duration

UNFINISHED = (JobState.BLOCKED, JobState.SCHEDULED, JobState.READY, JobState.IN_FLIGHT)
MAX_SINKS = 3
LATE = 3.0
"""Seconds, besides the third of its ttl after which a supervisor writes its row again, until it seems to be stopped."""


def waiting_because(job: Row, status: Row, configured: Container[str] = ()) -> str | None:
    """Return why this job (as `Queries.get`) does not run, and what to do, or why its dead letter is not delivered; None if it runs
    or has ended. `configured` are the sinks of the config in use."""
    present = Present(status)
    if job["state"] == JobState.IN_FLIGHT:
        return _in_flight(job, present)
    if job["state"] == JobState.BLOCKED:
        return _waits_for_others(job, status, present)
    if job["missing_sinks"]:
        return "; ".join(_not_accepted(sink, present, configured) for sink in job["missing_sinks"][:MAX_SINKS])
    if job["state"] not in UNFINISHED:
        return None
    due_in = present.until(job["due_at"]) if job["state"] == JobState.SCHEDULED else 0.0
    blocked = _blocked(job, status, present)
    if blocked is not None and (due_in <= 0 or _is_missing(job, present)):
        return blocked
    if due_in > 0:
        scheduled = _scheduled(job, due_in, present)
        return scheduled if blocked is None else f"{scheduled}; besides, {blocked}"
    return _ready(job, status, present)


def with_reasons(
    store: Store, jobs: Iterable[dict[str, Any]], configured: Container[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the jobs (as `Queries.get`) with the key `waiting_because`."""
    status: Row | None = None
    for job in jobs:
        if status is None and (job["state"] in UNFINISHED or job["missing_sinks"]):
            status = store.stats()
        yield {**job, "waiting_because": None if status is None else waiting_because(job, status, configured)}


def _waits_for_others(job: Row, status: Row, present: Present) -> str:
    """Return for which job, or for which limit, a blocked one waits."""
    if (parents := waits_for_parents(job)) is not None:
        return parents
    key, holder = job["key"], job["key_held_by"]
    if holder is None or holder["id"] == job["id"]:
        if (limit := _blocked(job, status, present) or limit_of(job, present.live, present)) is not None:
            return limit
        return "the job that it has waited for has ended, or a limit has been removed: wait a moment"
    id, state = holder["id"], holder["state"]
    if state == JobState.FAILED and holder["on_failure"] == "hold":
        return f"job {id}, which has failed, holds its key {key}: {look_at(id)}"
    if state in UNFINISHED:
        return f"job {id}, which is {state.replace('_', ' ')}, is before it in the order of its key {key}: wait until it has ended"
    if not present.live:
        return no_supervisor(present).text
    return (
        f"job {id}, which was before it in the order of its key {key}, {'was deleted' if state is None else 'has ended'}, and another "
        "session has locked the key, or has changed that job by SQL of its own: this job goes on within ten seconds after the transaction "
        "of that session has ended"
    )


def _not_accepted(sink: str, present: Present, configured: Container[str]) -> str:
    """Return why the sink has not accepted the dead letter of a job."""
    waits = f"its dead letter waits for sink {sink}"
    if not present.live:
        return f"{waits}, and {no_supervisor(present).text}"
    if not any(sink in each["sinks"] for each in present.live):
        return f"{waits}, which no running supervisor has: {SinkMissing(sink, 1, sink in configured).what_to_do}"
    for each in present.live:
        if error := each["failing_sinks"].get(sink):
            return f"{waits}, which does not accept it: {error}: repair it; the dead letter stays pending, and is offered again"
    return f"{waits}, to which it is offered soon: wait"


def _blocked(job: Row, status: Row, present: Present) -> str | None:
    """Return what keeps jobs like this one from being claimed."""
    queue = job["queue"]
    if any(row["queue"] == queue and row["paused"] for row in status["queues"]):
        return paused(queue, present).text
    if not present.live:
        return no_supervisor(present).text
    if not present.serving(queue):
        return unserved(queue, present).text
    if _is_missing(job, present):
        return missing_handler(job["handler"], present).text
    able = _able(job, present)
    if all(each["state"] != "running" for each in able):
        states = ", ".join(f"{name_of(each)} is {each['state']}" for each in able)
        return f"{states}: wait, or start another with: supervisor run"
    return None


def _able(job: Row, present: Present) -> list[Row]:
    """Return the supervisors that serve its queue and have its handler, or may have it: those that are starting."""
    return [
        each for each in present.serving(job["queue"]) if each["handlers"] is None or job["handler"] in each["handlers"]
    ]


def _is_missing(job: Row, present: Present) -> bool:
    return bool(present.serving(job["queue"])) and not _able(job, present)


def _scheduled(job: Row, due_in: float, present: Present) -> str:
    how = f"POST /api/jobs/{job['id']}/retry" if present.in_memory else f"supervisor jobs retry {job['id']}"
    now = f"or run it now with: {how}"
    if job["expired_count"] >= SUSPECT and not job["retries"]:
        return _suspect(job)
    when = f"in {format_duration(due_in)}, at {job['due_at']}"
    if job["snoozed_until"] is not None:
        times = counted(job["snoozes"], "time")
        return f"its handler has snoozed, {times} so far, until {job['snoozed_until']}, in {format_duration(due_in)}; wait, {now}"
    if not job["retries"]:
        if released := _claimed_without_handler(job, present):
            return f"{released}; this job is due {when}; wait, {now}"
        return f"it is scheduled: due {when}; wait, {now}"
    causes = [error["cause"] for error in job["errors"][-1:]]
    failed = f"attempt {job['retries']} failed{''.join(f' ({cause})' for cause in causes)}, and the next is due {when}"
    if any(job["queue"] in each["spent_budgets"] for each in present.live):
        failed += f"; the retry budget of queue {job['queue']} is used up, so its retries wait for backoff.max"
    return f"{failed}; wait, {now}"


def _claimed_without_handler(job: Row, present: Present) -> str:
    """Return why the job was released. One that was claimed before has the limit of retries under which it was claimed."""
    lacking = [each for each in present.serving(job["queue"]) if job["handler"] in each["missing_handlers"]]
    return lacks_handler(job["handler"], lacking[0]).text if lacking and job["max_retries"] is not None else ""


def _suspect(job: Row) -> str:
    sole = job["expired_count"] >= SOLE_SUSPECT
    lost = "supervisors were lost" if sole else "its supervisor was lost"
    how = "run one by one, and no other job starts beside one at first" if sole else "run one by one"
    return (
        f"{lost} while it ran, or might have run, so it is a suspect: suspects {how}, and it waits for its "
        "turn; wait, or cancel it if it is what ends supervisors"
    )


def _ready(job: Row, status: Row, present: Present) -> str:
    """Return why a job that a supervisor could claim now is not claimed."""
    able = [each for each in _able(job, present) if each["state"] == "running"]
    for kind in ("store", "workers", "worker_start", "forkserver"):
        broken = [(each, it) for each in able for it in each["problems"] if it["kind"] == kind]
        if broken and (kind == "store" or not any(_workers(each, job, "idle", "busy") for each in able)):
            each, it = broken[0]
            return f"{name_of(each)}: {it['message']}: {it['what_to_do']}"
    if job["expired_count"] >= SUSPECT:
        return _suspect(job)
    if able and all(each["runs_alone"] is not None for each in able):
        return (
            f"{name_of(able[0])} starts no other job beside job {able[0]['runs_alone']}, which may have ended supervisors, "
            "until that has ended or has run for some time: wait, or cancel that job if it is what ends supervisors"
        )
    if (limit := limit_of(job, able, present, reached=True)) is not None:
        return limit
    queue = job["queue"]
    waiting = next(
        ((row["queue_size"], row["retry_queue_size"]) for row in status["queues"] if row["queue"] == queue), (0, 0)
    )
    if job["retries"] and waiting[0] and any(queue in each["held_retries"] for each in able):
        return f"as many retries of queue {queue} run as retry.max_in_flight allows while fresh jobs wait: wait, or raise it"
    ready = f"{counted(sum(waiting), 'job', 'are')} ready in queue {queue}"
    if job["group"] is not None and not job["retries"]:
        ready += f", whose groups take turns; its group is {job['group']}"
    idle = sum(len(_workers(each, job, "idle")) for each in able)
    if idle:
        return f"{_are(idle)} idle, and {ready}: wait a moment, then look at the log of {name_of(able[0])}"
    busy = [worker for each in able for worker in _workers(each, job, "busy") if worker.get("current_job")]
    if not busy:
        return f"no worker of {name_of(able[0])} is ready yet: wait, or look at its log"
    longest = max((worker["current_job"] for worker in busy), key=present.ran)
    are = "async workers are" if _is_async(job, able[0]) else _are(len(busy))
    return (
        f"{are} busy, the longest with job {longest['job_id']} ({longest['handler']}) for "
        f"{format_duration(present.ran(longest))}, and {ready}: wait, or raise "
        f"{_count_for(able[0], job)}"
    )


def _group_for(supervisor: Row, queue: str) -> str | None:
    return next((it["group"] for it in supervisor["groups"] if queue in (it["queues"] or ())), None)


def _is_async(job: Row, supervisor: Row) -> bool:
    return job["handler"] in supervisor["async_handlers"]


def _count_for(supervisor: Row, job: Row) -> str:
    if _is_async(job, supervisor):
        return "workers.async.concurrency"
    group = _group_for(supervisor, job["queue"])
    return "workers.count" if group is None else f"workers.groups.{group}.count"


def _are(workers: int) -> str:
    return "the only worker that may run it is" if workers == 1 else f"{workers} workers that may run it are"


def _workers(supervisor: Row, job: Row, *states: str) -> list[Row]:
    """Return the workers in these states that may run the job; an async worker is there once for each job that it runs."""
    workers = [each for each in supervisor["workers"] if each.get("state") in states]
    if _is_async(job, supervisor):
        return [each for each in workers if each.get("async")]
    group = _group_for(supervisor, job["queue"])
    return [each for each in workers if not each.get("async") and each.get("group") == group]


def still_runs(id: int, status: Row) -> str | None:
    """Return why the worker of a job that is cancelled may not be killed soon, and what to do; None if there is no sign of that. The
    status is from before: without leases, a supervisor that was not seen is soon left out."""
    present = Present(status)
    for each in (*present.live, *present.silent):
        late = abs(present.age(each)) > ttl_of(each) / 3 + LATE
        if late and any((worker.get("current_job") or {}).get("job_id") == id for worker in each["workers"]):
            return (
                f"its worker may still run it: {present.not_seen(each)}, and kills the worker only once it goes "
                "on: continue it (SIGCONT) if it is stopped, or end it, which ends its workers"
            )
    return None


def _in_flight(job: Row, present: Present) -> str | None:
    """Return why a job that is claimed does not run; None if it runs."""
    owner = (job["lease"] or {}).get("owner")
    found = [each for each in (*present.live, *present.silent, *present.gone) if each["owner"] == owner]
    if not found or found[0] in present.gone:
        name = name_of(found[0]) if found else f"its supervisor ({owner})"
        if present.live:
            return f"{name} is gone; a running supervisor recovers the job at once: wait"
        return f"{name} is gone, and no other runs: start one with: supervisor run"
    if (mine := found[0]) in present.silent:
        expires = present.until(job["lease"]["until"]) if job["lease"]["until"] else 0.0
        then = f"another supervisor recovers the job in about {format_duration(max(0.0, expires) + ttl_of(mine) / 2)}"
        what = (
            f"{then}: wait" if present.live else "no other runs: look at its log, or start another with: supervisor run"
        )
        return f"{present.not_seen(mine)}; {what}"
    if any((worker.get("current_job") or {}).get("job_id") == job["id"] for worker in mine["workers"]):
        return None
    if job["expired_count"] >= SUSPECT:
        return _suspect(job)
    return f"{name_of(mine)} has claimed it, and starts it once a worker is free: wait"
