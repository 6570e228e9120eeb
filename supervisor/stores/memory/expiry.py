"""The expiry of jobs in memory: see `supervisor.stores.expiry`."""

from __future__ import annotations

from heapq import heappop

from supervisor.jobs import ExpiredJob, JobState
from supervisor.stores.expiry import expired_record
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.links import Links
from supervisor.stores.memory.state import MemoryState

_WAITS = (JobState.BLOCKED, JobState.SCHEDULED, JobState.READY)


class Expiries:
    """All calls are made inside a transaction."""

    def __init__(self, state: MemoryState, links: Links) -> None:
        self._state, self._links = state, links

    def next_in(self, now: int) -> int | None:
        job = self._next()
        return None if job is None or job.expires_at is None else job.expires_at - now

    def sweep(self, now: int, limit: int) -> tuple[tuple[ExpiredJob, ...], bool]:
        """Cancel the jobs that have expired, and forget the expiry of others. Return the jobs, and whether more are past."""
        expired: list[ExpiredJob] = []
        for _ in range(limit):
            job = self._next()
            if job is None or job.expires_at is None or job.expires_at > now:
                return tuple(expired), False
            expires_at = job.expires_at
            self._state.change(job, may_expire=False)
            if job.state in _WAITS and not job.retries and not job.snoozes and job.started_at is None:
                self._expire(job, expires_at, now)
                expired.append(ExpiredJob(job.id, job.row.handler, job.row.queue))
        return tuple(expired), limit > 0

    def _next(self) -> JobRecord | None:
        """Return the job that is the next to expire, or to be asked whether it still does."""
        while self._state.expiring:
            expires_at, id = self._state.expiring[0]
            job = self._state.jobs.get(id)
            if job is not None and job.may_expire and job.expires_at == expires_at:
                return job
            heappop(self._state.expiring)
        return None

    def _expire(self, job: JobRecord, expires_at: int, now: int) -> None:
        errors = (*job.errors, expired_record(expires_at, now))
        self._links.groups.free_turn(job)
        self._state.change(job, state=JobState.CANCELLED, token=job.token + 1, finished_at=now, errors=errors)
        self._links.ended(job)
