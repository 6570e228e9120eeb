"""The problems that keep jobs from running, as `supervisor status` shows them: found in its own figures."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import datetime
from shlex import quote
from typing import Any, NamedTuple

from supervisor.events import SinkMissing
from supervisor.jobs import JobState
from supervisor.stores.stuck import KEY_HELD, MAX_STUCK, MAX_WAITING, PARENT_FAILED
from supervisor.text.units import counted, format_duration

Row = Mapping[str, Any]
"""A queue, a supervisor or a job, as JSON for programs has it."""

USUAL_TTL = 30.0
RUN = "supervisor run"


class Problem(NamedTuple):
    kind: str
    message: str
    what_to_do: str

    @property
    def text(self) -> str:
        return f"{self.message}: {self.what_to_do}"


class Present:
    """The supervisors of a status by what they can do: `live` were seen lately, `silent` were not, `gone` have ended."""

    def __init__(self, status: Row) -> None:
        self._at = status["at"]
        supervisors: Sequence[Row] = status["supervisors"]
        self.gone = [each for each in supervisors if each["state"] == "gone"]
        present = [each for each in supervisors if each["state"] != "gone"]
        self.silent = [each for each in present if abs(self.age(each)) > ttl_of(each)]
        self.live = [each for each in present if each not in self.silent]

    @property
    def in_memory(self) -> bool:
        """Whether the jobs are in the memory of a supervisor, as with a Kafka store: commands on the store do not reach them."""
        return any(each.get("partitions") for each in self.live)

    def age(self, supervisor: Row) -> float:
        """Return how many seconds ago it wrote its row; below zero if the clock was set back since."""
        return -self.until(supervisor["seen_at"])

    def until(self, stamp: str) -> float:
        """Return the seconds from the time of the status to another time."""
        return (datetime.fromisoformat(stamp) - datetime.fromisoformat(self._at)).total_seconds()

    def ran(self, current_job: Row) -> float:
        """Return for how many seconds a current job of a worker has run by now."""
        ran, since = float(current_job["running_for"]), current_job.get("running_since")
        return max(ran, -self.until(since)) if since else ran

    def serving(self, queue: str) -> list[Row]:
        return [each for each in self.live if each["queues"] is None or queue in each["queues"]]

    def not_seen(self, supervisor: Row) -> str:
        age = self.age(supervisor)
        how_long = (
            f"for {format_duration(age)}" if age > 0 else f"since the clock was set back by {format_duration(-age)}"
        )
        return f"{name_of(supervisor)} was not seen {how_long}"

    def recovery(self, gone: Row) -> str:
        """Return when the jobs of a supervisor that is gone, or not seen, run again."""
        if not self.live:
            return f"they run again once a supervisor runs; start one with: {RUN}"
        if gone["state"] == "gone":
            return "a running supervisor recovers them at once"
        expires = self.until(gone["lease_until"]) if gone["lease_until"] else 0.0
        return f"another supervisor recovers them in about {format_duration(max(0.0, expires) + ttl_of(gone) / 2)}"


def name_of(supervisor: Row) -> str:
    return f"supervisor {supervisor['host']} pid {supervisor['pid']}"


def ttl_of(supervisor: Row) -> float:
    return float(supervisor["lease_ttl"] or USUAL_TTL)


def unserved(queue: str, present: Present) -> Problem:
    served = sorted({name for each in present.live for name in each["queues"] or ()})
    message = f"no running supervisor serves queue {queue} (served: {', '.join(served)})"
    return Problem(
        "queue_not_served", message, f"add it to workers.queues of one and send HUP, or start another with: {RUN}"
    )


def paused(queue: str, present: Present) -> Problem:
    how = f"supervisor queues resume {quote(queue)}"
    if present.in_memory:
        how = f"the HTTP API of this supervisor, POST /api/queues/{queue}/resume"
    return Problem("queue_paused", f"queue {queue} is paused", f"resume it with: {how}")


def no_supervisor(present: Present) -> Problem:
    """Return why nothing runs at all."""
    if not present.silent:
        return Problem("no_supervisor", "no supervisor is running", f"start one with: {RUN}")
    text = present.not_seen(present.silent[0])
    return Problem(
        "not_seen", text, f"it is stopped, or cannot write to the store: look at its log, or start another with: {RUN}"
    )


def missing_handler(handler: str, present: Present) -> Problem:
    """Return why no supervisor runs the jobs of this handler."""
    failed = [it["message"] for each in present.live for it in each["problems"] if it["kind"] == "plugin"]
    message = f"no running supervisor has the handler {handler}" + (f"; {'; '.join(failed)}" if failed else "")
    return Problem(
        "handler_missing", message, "correct or add its plugin and send HUP, or cancel the job if the name is wrong"
    )


def lacks_handler(handler: str, claimer: Row) -> Problem:
    """Return why jobs wait though another supervisor has their handler: this one, which serves their queue, has claimed some."""
    message = f"{name_of(claimer)} claims jobs for the handler {handler}, and releases them for later, since none of its plugins has it"
    return Problem(
        "handler_elsewhere", message, "another supervisor has it: give both the same plugins, or queues of their own"
    )


def limit_of(job: Row, supervisors: Sequence[Row], present: Present, reached: bool = False) -> str | None:
    """Return for which limit a job waits: one of its queue or handler that is `reached` as these supervisors know, or any of its
    handler or group."""
    names = [("handler", job["handler"])]
    if reached or job["group"] is not None:
        names.append(("queue" if reached else "groups", job["queue"]))
    found = [it for each in supervisors for it in each["limits"] if (it["of"], it["name"]) in names]
    limit = next((it for it in found if it["reached"]), None if reached or not found else found[0])
    if limit is None:
        return None
    of, name, text = limit["of"], limit["name"], limit["limit"]
    does = _until(limit, present) if limit["reached"] == "rate" else "no more may run now"
    if of == "groups":
        return f"group {job['group']} has the limit {text}, as each in queue {name}, and {does}: wait, or raise queues.{name}.group_limit"
    return f"{of} {name} has the limit {text}, and {does}: wait, or raise {of}s.{name}.limit"


def _until(limit: Row, present: Present) -> str:
    """Return until when the rate of the limit allows no claim, if the supervisor has announced it."""
    until = limit.get("until")
    left = present.until(until) if until else 0.0
    if left <= 0:
        return "no more may be claimed now"
    some = " in some groups" if limit["of"] == "groups" else ""
    return f"no more may be claimed{some} for {format_duration(left)}, until {until}"


def problems(status: Row, configured: Container[str] = ()) -> list[Problem]:
    """Return the problems of a status (as `Queries.stats`), those that stop most jobs first. `configured` are the sinks of the
    config in use."""
    return list(_found(status, Present(status), configured))


def with_problems(status: Row, configured: Container[str] = ()) -> dict[str, Any]:
    """Return the status with its `problems`, as `status --json` prints it."""
    return {**status, "problems": [each._asdict() for each in problems(status, configured)]}


def look_at(holder: int) -> str:
    """Return what to do about a failed job that holds its key."""
    return (
        f"look at it with: supervisor jobs show {holder}; then run it again with: supervisor jobs retry {holder}, or let the others pass "
        f"with: supervisor jobs delete {holder}"
    )


def _stuck(found: Sequence[Row]) -> Iterator[Problem]:
    """Yield one problem for all failed jobs that hold their keys, and one for all parents that have ended without success."""
    held = [row for row in found if row["kind"] == KEY_HELD]
    for row in held[:1]:
        others = _others(len(held), "other failed job", "hold its key" if len(held) == 2 else "hold their keys")
        message = f"job {row['job_id']} ({row['handler']}), which has failed, holds its key {row['key']}, and {_waiting(row)} for it{others}"
        yield Problem(KEY_HELD, message, look_at(row["job_id"]))
    parents = [row for row in found if row["kind"] == PARENT_FAILED]
    for row in parents[:1]:
        how = "has failed" if row["state"] == JobState.FAILED else "was cancelled"
        others = _others(len(parents), "other such parent", "hold up others")
        message = f"job {row['job_id']} ({row['handler']}) {how}, and {_waiting(row)} until it has succeeded, such as job {row['child']}{others}"
        again = f"run it again with: supervisor jobs retry {row['job_id']}"
        yield Problem(
            PARENT_FAILED, message, f"{again}, or cancel what waits with: supervisor jobs cancel {row['child']}"
        )


def _waiting(row: Row) -> str:
    return f"{'at least ' if row['waiting'] >= MAX_WAITING else ''}{counted(row['waiting'], 'job', 'wait')}"


def _others(n: int, noun: str, do: str) -> str:
    if n < 2:
        return ""
    does = do if n > 2 else f"{do.split()[0]}s {' '.join(do.split()[1:])}"
    return f"; {'at least ' if n >= MAX_STUCK else ''}{counted(n - 1, noun)} {does} too"


def _found(status: Row, present: Present, configured: Container[str]) -> Iterator[Problem]:
    if not present.live:
        yield no_supervisor(present)
    for each in present.gone:
        yield Problem(
            "gone",
            f"{name_of(each)} is gone with {counted(each['in_flight'], 'job')} in flight",
            present.recovery(each),
        )
    for each in present.silent if present.live else ():
        what = present.recovery(each) if each["in_flight"] else "look at its log"
        yield Problem(
            "not_seen", f"{present.not_seen(each)}, and has {counted(each['in_flight'], 'job')} in flight", what
        )
    for row in status["queues"]:
        ready, queue = row["queue_size"] + row["retry_queue_size"], row["queue"]
        if row["paused"]:
            yield paused(queue, present)._replace(
                message=f"queue {queue} is paused; {counted(ready + row['scheduled'], 'job', 'wait')} in it"
            )
        elif ready and present.live and not present.serving(queue):
            problem = unserved(queue, present)
            yield problem._replace(message=f"{problem.message}; {counted(ready, 'job', 'wait')} in it")
    known = {handler for each in present.live for handler in each["handlers"] or ()}
    for handler in sorted({handler for each in present.live for handler in each["missing_handlers"]} - known):
        yield missing_handler(handler, present)
    for each in present.live:
        yield from (lacks_handler(handler, each) for handler in each["missing_handlers"] if handler in known)
        for it in each["problems"]:
            yield Problem(it["kind"], f"{name_of(each)}: {it['message']}", it["what_to_do"])
    yield from _stuck(status["stuck"])
    for row in status["sinks"]:
        if row["pending"] and not row["supervisors"]:
            missing = SinkMissing(row["sink"], row["pending"], row["sink"] in configured)
            yield Problem("sink_missing", missing.message, missing.what_to_do)
