"""supervisor jobs show --follow"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from supervisor.cli.context import UserMistake, echo
from supervisor.cli.exit_codes import NOT_SUCCEEDED
from supervisor.cli.job_output import progress_line, progress_name
from supervisor.cli.render import escaped, print_json
from supervisor.cli.store_access import once_available
from supervisor.client.ended_jobs import Ended
from supervisor.jobs import JobState
from supervisor.stores.protocol import Store
from supervisor.stores.waiting import with_reasons

INTERVAL = 1.0  # seconds from one look to the next: what jobs report is written once a second


def follow(store: Store, id: int, as_json: bool) -> int | None:
    """Print what changes of the job until it ends; return the exit code. Raises UserMistake if there is no such job."""
    before, job = None, _look(store, id)
    if job is None:
        raise UserMistake(f"no job {id}")
    while True:
        if as_json and _for_comparison(job) != _for_comparison(before):
            print_json(job)
        elif not as_json:
            for line in _changes(before or {}, job):
                echo(escaped(line))
        if JobState(job["state"]).terminal:
            return None if job["state"] == JobState.SUCCEEDED else NOT_SUCCEEDED
        time.sleep(INTERVAL)
        before, job = job, _look(store, id)
        if job is None:
            raise UserMistake(f"job {id} was deleted")


def _for_comparison(job: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the job without what changes all the time: the end of its lease, and times and counts in the reason why it waits."""
    return None if job is None else {**job, "lease": None, "waiting_because": _kind(job)}


def _kind(job: dict[str, Any]) -> str | None:
    """Return the reason why the job waits, without its numbers."""
    return job["waiting_because"] and re.sub(r"(\d[\w.:-]*,? ?)+", "#", job["waiting_because"])


def _look(store: Store, id: int) -> dict[str, Any] | None:
    return once_available(lambda: next(iter(with_reasons(store, filter(None, [store.get(id)]))), None))


def _changes(before: dict[str, Any], job: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each change: what was logged comes before the state that followed."""
    ended = JobState(job["state"]).terminal
    same = before and all(before[key] == job[key] for key in ("state", "attempt")) and _kind(before) == _kind(job)
    if not ended and not same:
        yield _state(job)
    yield from _new_log(before.get("log"), job["log"])
    if job["progress"] is not None and before.get("progress") != job["progress"]:
        yield f"{progress_name(job)}: {progress_line(job['progress'])}"
    if ended:
        succeeded = job["state"] == JobState.SUCCEEDED
        yield f"job {job['id']} ({job['handler']}) succeeded" if succeeded else str(Ended(job["id"], job, True).outcome)


def _state(job: dict[str, Any]) -> str:
    because = (job["waiting_because"] or "").removeprefix(f"it is {job['state']}: ")
    reason = f": {because}" if because else ""
    attempt = f", attempt {job['attempt']}" if job["state"] == JobState.IN_FLIGHT else ""
    return f"job {job['id']} ({job['handler']}) is {job['state']}{attempt}{reason}"


def _new_log(before: dict[str, Any] | None, log: dict[str, Any] | None) -> Iterator[str]:
    """Yield the lines that were not there before, as far as they are kept."""
    if log is None:
        return
    seen = before["skipped"] + len(before["lines"]) if before and before["attempt"] == log["attempt"] else 0
    if log["skipped"] > seen:
        yield f"... {log['skipped'] - seen} lines left out ..."
    yield from log["lines"][max(0, seen - log["skipped"]) :]
