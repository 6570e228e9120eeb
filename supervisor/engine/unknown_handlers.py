"""Jobs whose handler no plugin serves here, and since when. Told by job, not by handler: what one supervisor misses another
may serve, and a job must not die the moment it is enqueued because it was claimed by the wrong one."""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import NamedTuple

from supervisor.jobs import Lease

MAX_JOBS = 100_000
SWEEP_EVERY = 60.0  # seconds; it holds up the loop for tens of milliseconds


class MissingHandler(NamedTuple):
    """Since when (monotonic seconds) a job has been met without its handler, and how many retries it had."""

    since: float
    retries: int
    handler: str


class MissingHandlers:
    def __init__(self) -> None:
        self._by_job: dict[int, MissingHandler] = {}
        self._swept_at = float("-inf")

    def missed_for(self, lease: Lease, now: float, *, grace: float, again_in: float) -> float:
        """The job was met: for how long it has missed its handler. One that ran elsewhere meanwhile, or was not met for
        `grace` beyond the time by which it should have been (`again_in` is when it is looked at again), is a new absence.

        Past `MAX_JOBS` jobs the others wait until some of these have gone.
        """
        absence = self._by_job.get(lease.id)
        if absence is None or absence.retries != lease.retries or _stale(absence, now, grace, again_in):
            absence = MissingHandler(now, lease.retries, sys.intern(lease.handler))
            if self._has_room(lease.id, now, grace, again_in):
                self._by_job[lease.id] = absence
        missed_for = now - absence.since
        if missed_for >= grace:
            self._by_job.pop(lease.id, None)
        return missed_for

    def _has_room(self, job: int, now: float, grace: float, again_in: float) -> bool:
        if job in self._by_job or len(self._by_job) < MAX_JOBS:
            return True
        if now - self._swept_at >= SWEEP_EVERY:
            self._swept_at = now
            kept = {id: one for id, one in self._by_job.items() if not _stale(one, now, grace, again_in)}
            self._by_job = kept
        return len(self._by_job) < MAX_JOBS

    def end(self, served: Container[str]) -> None:
        """These handlers are served now."""
        self._by_job = {id: absence for id, absence in self._by_job.items() if absence.handler not in served}


def _stale(absence: MissingHandler, now: float, grace: float, again_in: float) -> bool:
    return now - absence.since >= 2 * (grace + again_in)
