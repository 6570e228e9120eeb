"""The rows of supervisors as people and programs see them, in `status --json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from supervisor.text.units import iso

ABOUT: Mapping[str, Any] = {
    "queues": None,  # served here; None for all
    "groups": [],  # of workers, each with `group` (None: of all other queues), `queues`, `count`, `min`, `max`
    "handlers": None,  # None until its plugins are loaded
    "async_handlers": [],  # those of its handlers that async workers run
    "schedules": [],  # the names of those that it fires
    "lease_ttl": None,  # seconds
    "problems": [],  # each with `kind`, `message` and `what_to_do`
    "missing_handlers": [],  # of jobs that it claimed lately
    "held_retries": [],  # queues that have as many retries in flight as they may
    "spent_budgets": [],  # queues whose budget of retries is used up
    "failing_sinks": {},  # the last error of each sink that does not accept dead letters
    "partitions": [],  # of a Kafka store, that the group has given to it
    "limits": [],  # of queues and handlers: `of` which, `name`, `limit` as text, if it is `reached`, by "running" or "rate", and `until` when
    "runs_alone": None,  # the id of the suspect beside which no other job may start now
}
"""The facts that a supervisor announces of itself, with the value of each until then."""
NEW_ID = "%s: the row of this supervisor was gone, so it has joined again under a new id: was a backup restored?"


class SupervisorRow(NamedTuple):
    """A supervisor as any store keeps it. Times are microseconds since the epoch; `lease_until` is the latest end of its leases."""

    owner: str
    host: str
    pid: int
    state: str
    seen_at: int
    in_flight: int
    lease_until: int | None


def supervisor_dict(
    row: SupervisorRow, gone: bool, workers: Sequence[Any], sinks: Iterable[str], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one of the `supervisors` of `status --json`. One that is gone has no workers, sinks and problems any more."""
    known = {**row._asdict(), "seen_at": iso(row.seen_at), "lease_until": iso(row.lease_until)}
    if gone:
        return {**known, "state": "gone", "workers": [], "sinks": [], **ABOUT}
    shown = [_with_running_since(worker, row.seen_at) for worker in workers]
    return {**known, "workers": shown, "sinks": sorted(sinks), **ABOUT, **about}


def _with_running_since(worker: Any, seen_at: int) -> Any:
    """Return a worker with the time at which its job has started. The row has for how long the job had run when it was written,
    and this time is by the clock of the store, whatever the clock of the supervisor is."""
    job = worker.get("current_job") if isinstance(worker, dict) else None
    if not isinstance(job, dict):
        return worker
    ran = job.get("running_for")
    since = iso(seen_at - round(ran * 1_000_000)) if isinstance(ran, int | float) else None
    return {**worker, "current_job": {**job, "running_since": since}}


def read_list(text: str) -> list[Any]:
    """Return a list that another program may have replaced: it must not hold up others."""
    value = _read(text)
    return value if isinstance(value, list) else []


def read_about(text: str) -> dict[str, Any]:
    """Return the fields of ABOUT in a text that another program may have written."""
    value = _read(text)
    return {name: value[name] for name in ABOUT if name in value} if isinstance(value, dict) else {}


def _read(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return None
