"""supervisor jobs show --follow"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from supervisor.cli.context import UserMistake, echo
from supervisor.cli.exit_codes import NOT_SUCCEEDED
from supervisor.cli.job_output import progress_line
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
        if as_json and _without_lease(job) != _without_lease(before):
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


def _without_lease(job: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the job without the end of its lease, which changes all the time."""
    return None if job is None else {**job, "lease": None}


def _look(store: Store, id: int) -> dict[str, Any] | None:
    return once_available(lambda: next(iter(with_reasons(store, filter(None, [store.get(id)]))), None))


def _changes(before: dict[str, Any], job: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each change: what was logged comes before the state that followed."""
    ended = JobState(job["state"]).terminal
    if not ended and any(before.get(key) != job[key] for key in ("state", "attempt", "waiting_because")):
        yield _state(job)
    yield from _new_log(before.get("log"), job["log"])
    if job["progress"] is not None and before.get("progress") != job["progress"]:
        yield f"progress: {progress_line(job['progress'])}"
    if ended:
        succeeded = job["state"] == JobState.SUCCEEDED
        yield f"job {job['id']} ({job['handler']}) succeeded" if succeeded else str(Ended(job["id"], job, True).outcome)


def _state(job: dict[str, Any]) -> str:
    reason = f": {job['waiting_because']}" if job["waiting_because"] else ""
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
