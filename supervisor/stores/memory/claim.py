"""From enqueue to claim in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from supervisor.errors import StoreError
from supervisor.jobs import JobState, Lease, Tier
from supervisor.stores.counts import waiting_of
from supervisor.stores.memory.owners import Owners
from supervisor.stores.memory.state import JobRecord
from supervisor.stores.records import ClaimRequest, EnqueueRow, Look, Resolve, Waiting, microseconds


class Claims(Owners):
    def enqueue(self, rows: Sequence[EnqueueRow]) -> list[int]:
        with self.transaction():
            ids = [self._add(row) for row in rows]
            self.notify()
            return ids

    def _add(self, row: EnqueueRow) -> int:
        now = self._now()
        due = row.at if row.at is not None else now + microseconds(row.delay or 0.0)
        id = self._next_age()
        self._memory.remember(id)
        job = JobRecord(id, row, due, now, JobState.SCHEDULED if due > now else JobState.READY, age=id)
        self._memory.jobs[id] = job
        self._memory.file(job)
        return id

    def _next_age(self) -> int:
        self._memory.sequence += 1
        return self._memory.sequence

    def promote(self, limit: int) -> int:
        with self.transaction():
            moved, now = 0, self._now()
            while moved < limit and (job := self._memory.next_scheduled()) is not None and job.due_at <= now:
                self._change(job, state=JobState.READY)
                moved += 1
            return moved

    def waiting(self, served: frozenset[str] | None) -> dict[str, Waiting]:
        with self._memory.lock:
            counts, paused = self._memory.counts.items(), self._memory.paused
            ready = [(queue, tier, n) for (queue, tier, state), n in counts if n and state is JobState.READY]
            return waiting_of([row for row in ready if row[0] not in paused], served)

    def next_due(self) -> float | None:
        with self._memory.lock:
            job = self._memory.next_scheduled()
            return None if job is None else max(0.0, (job.due_at - self._now()) / 1e6)

    def look(self, served: frozenset[str] | None, limit: int) -> Look:
        self.promote(limit)
        return Look(self.waiting(served), self.next_due())

    def paused(self) -> frozenset[str]:
        return frozenset(self._memory.paused)

    def claim(self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve) -> list[Lease]:
        if self._owner is None:
            raise StoreError("claim: join first, so that the leases have an owner")
        with self.transaction():
            deadline = self._now() + microseconds(ttl)
            resolved = cache(resolve)  # one claim, one policy for all jobs of a handler in a queue
            return [self._claim(job, deadline, resolved) for take in takes for job in self._pick(take)]

    def _pick(self, take: ClaimRequest) -> list[JobRecord]:
        if take.queue in self._memory.paused:
            return []
        fresh = self._memory.candidates(take.queue, Tier.FRESH, take.limit)
        retries = self._memory.candidates(take.queue, Tier.RETRY, min(take.limit, take.max_retries_claimed))
        urgent = sum(job.row.priority >= take.urgent for job in fresh)
        return take.pick(fresh, urgent, retries)

    def _claim(self, job: JobRecord, deadline: int, resolve: Resolve) -> Lease:
        self._change(
            job,
            state=JobState.IN_FLIGHT,
            token=job.token + 1,
            owner=self._owner,
            lease_until=deadline,
            started_at=None,
            policy=resolve(job.row.handler, job.row.queue),
        )
        return job.lease()
