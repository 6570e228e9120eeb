"""The blocked jobs that a drain leaves, and why one of them waits. Some wait for jobs that are due after its horizon, and so are left
out as these are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from supervisor.jobs import JobState
from supervisor.stores.pages import in_pages
from supervisor.stores.protocol import Store
from supervisor.stores.records import microseconds
from supervisor.stores.waiting import waiting_because
from supervisor.text.units import microseconds_of_iso

MAX_LOOKED_AT = 1000
"""If more jobs are blocked, it is not known which wait for jobs that are due later."""


class BlockedJobs(NamedTuple):
    """Blocked jobs of served, unpaused queues, by id: those that wait for a job which is due after the horizon, and the others."""

    after_horizon: list[int]
    others: list[int]


class _Blocked(NamedTuple):
    id: int
    queue: str
    awaited: Mapping[int, str]


def blocked_jobs(store: Store, served: frozenset[str] | None, latest: float | None) -> BlockedJobs:
    """Return the blocked jobs, those that wait for a job due after `latest` apart. If they are too many, the newest are returned, all
    as others."""
    found = sorted(_Blocked(job["id"], job["queue"], dict(_awaited(job))) for job in _all_blocked(store))
    later = _due_after(store, found, latest) if latest is not None and len(found) <= MAX_LOOKED_AT else set()
    known = 0
    while len(later) > known:  # a job that waits for one that waits is found by the next round, unless its id is higher
        known = len(later)
        later.update(job.id for job in found if not later.isdisjoint(job.awaited))
    paused = store.paused()
    counted = [job.id for job in found if job.queue not in paused and (served is None or job.queue in served)]
    return BlockedJobs([id for id in counted if id in later], [id for id in counted if id not in later])


def why_blocked(store: Store, ids: list[int], status: dict[str, Any]) -> str:
    """Return why the first of these jobs waits; an empty text if none is blocked any more."""
    for job in in_pages(ids, store.get_many):
        if job["state"] == JobState.BLOCKED and (reason := waiting_because(job, status)):
            return f"job {job['id']} ({job['handler']}) is blocked: {reason}"
    return ""


def _all_blocked(store: Store) -> Iterator[dict[str, Any]]:
    return store.list_jobs(state=JobState.BLOCKED, limit=MAX_LOOKED_AT + 1)


def _awaited(job: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield the id and the state of each job that this one waits for: of its parents, and of the job that holds its key."""
    for parent in job["parents"]:
        if parent["waits"]:
            yield parent["id"], parent["state"]
    holder = job["key_held_by"]
    if holder is not None and holder["id"] != job["id"]:
        yield holder["id"], holder["state"]


def _due_after(store: Store, blocked: list[_Blocked], latest: float) -> set[int]:
    """Return which of the awaited jobs are scheduled for a time after `latest`."""
    scheduled = {id for job in blocked for id, state in job.awaited.items() if state == JobState.SCHEDULED}
    return {
        job["id"]
        for job in in_pages(sorted(scheduled), store.get_many)
        if job["state"] == JobState.SCHEDULED and microseconds_of_iso(job["due_at"]) > microseconds(latest)
    }
