"""Enqueue, look and claim in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from supervisor.errors import StoreError
from supervisor.jobs import JobState, Lease, Tier
from supervisor.retry import SUSPECT
from supervisor.stores.counts import newly_ready, waiting_of
from supervisor.stores.expiry import next_look
from supervisor.stores.extras import ExistingId, Extras
from supervisor.stores.memory.expiry import Expiries
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.links import Links
from supervisor.stores.memory.ownership import Ownership
from supervisor.stores.memory.state import MemoryState, join_parents, leave_parents
from supervisor.stores.memory.unique import UniqueKeys
from supervisor.stores.records import ClaimRequest, EnqueueRow, Look, Resolve, microseconds
from supervisor.stores.unique import naming_no_new_job, replaced_extras
from supervisor.stores.workflows import WAITS

_UNCLAIMED = (JobState.BLOCKED, JobState.SCHEDULED, JobState.READY)


class Queue:
    def __init__(self, state: MemoryState, owner: Ownership, links: Links) -> None:
        self._state, self._owner, self._links = state, owner, links
        self._unique, self._expiries = UniqueKeys(state), Expiries(state, links)

    def enqueue(self, rows: Sequence[EnqueueRow]) -> list[int]:
        ids: list[int] = []
        with self._state.transaction(), naming_no_new_job(ids):
            for row in rows:
                ids.append(self._add(row.with_parents(ids)))
            self._owner.notify()
            return ids

    def _add(self, row: EnqueueRow) -> int:
        now, id, extras = self._state.now(), self._state.next_age(), row.extras
        if extras is not None and (existing := self._unique.take(id, extras)) is not None:
            replaced = extras.on_conflict == "replace" and self._replace(existing, row, extras)
            return ExistingId(existing, replaced=replaced)
        due = row.at if row.at is not None else now + microseconds(row.delay or 0.0)
        state = JobState.SCHEDULED if due > now else JobState.READY
        links = {} if row.extras is None else dict.fromkeys(row.extras.after, WAITS)
        if links:
            state = JobState.BLOCKED
        job = JobRecord(id, row, due, now, state, age=id, links=links)
        self._state.add(job)
        if links:
            self._links.linked(job)
        elif state is JobState.READY:
            self._links.due(job)
        return id

    def _replace(self, id: int, row: EnqueueRow, extras: Extras) -> bool:
        """Change the job into this row, unless it has been claimed or has ended. Return whether it was changed."""
        job = self._state.jobs.get(id)
        if job is None or job.state not in _UNCLAIMED:
            return False
        if job.held_back and job.state is JobState.BLOCKED:
            self._state.change(job, state=JobState.READY, held_back=None)
        now, before, state, due = self._state.now(), job.state, job.state, job.due_at
        if extras.after or state is not JobState.BLOCKED or job.waits_for_parents:
            due = row.at if row.at is not None else now + microseconds(row.delay or 0.0)
            state = JobState.BLOCKED if extras.after else JobState.SCHEDULED if due > now else JobState.READY
        if extras.after:
            self._links.leave(job)
        moved = row.queue != job.row.queue
        if state is not JobState.READY or moved:
            self._links.groups.free_turn(job)
        age = job.id if job.tier == Tier.RETRY else job.age
        row = row._replace(extras=replaced_extras(job.row.extras, extras))
        leave_parents(job, self._state.children)
        self._state.change(
            job, row=row, state=state, due_at=due, tier=Tier.FRESH, age=age, retries=0, started_at=None,
            replaced_at=now, may_expire=True, snoozes=0, snoozed_until=None, links=dict.fromkeys(extras.after, WAITS),
        )  # fmt: skip
        join_parents(job, self._state.children)
        if extras.after:
            self._links.linked(job)
        elif state is JobState.READY and before is not JobState.READY:
            self._links.due(job)
        elif moved:
            self._links.groups.take_turn(job)
        self._unique.give(extras.unique or "", id, extras)
        return True

    def look(self, served: frozenset[str] | None, limit: int, stay: bool = False) -> Look:
        with self._state.transaction():
            now, before = self._state.now(), self._ready()
            expired, more = self._expiries.sweep(now, limit)
            if more:
                return Look({}, 0.0, expired=expired)
            for _ in range(limit):
                job = self._state.next_scheduled()
                if job is None or job.due_at > now:
                    break
                self._state.change(job, state=JobState.READY)
                self._links.due(job)
            ready, job = self._ready(), self._state.next_scheduled()
            wait = next_look(None if job is None else job.due_at - now, self._expiries.next_in(now))
            seconds = None if wait is None else max(0.0, wait / 1e6)
            return Look(waiting_of(ready, served), seconds, newly_ready(before, ready), expired=expired)

    def _ready(self) -> list[tuple[str, int, int]]:
        return [
            (queue, tier, n)
            for (queue, tier, state), n in self._state.counts.items()
            if n and state is JobState.READY and queue not in self._state.paused
        ]

    def make_due(self, handlers: Collection[str], within: float, limit: int) -> int:
        with self._state.transaction():
            now = self._state.now()
            found = [
                job
                for job in self._state.jobs.values()
                if job.state is JobState.SCHEDULED and not job.retries and job.token and job.row.handler in handlers
                if now < job.due_at <= now + microseconds(within) and job.expired_count < SUSPECT
                if job.due_at != job.snoozed_until
            ]
            for job in found[:limit]:
                self._state.change(job, due_at=now)
            return len(found[:limit])

    def paused(self) -> frozenset[str]:
        return frozenset(self._state.paused)

    def claim_ready(self, jobs: Sequence[JobRecord], ttl: float, resolve: Resolve) -> list[Lease]:
        """Claim these jobs, which are ready."""
        deadline = self._state.now() + microseconds(ttl)
        resolved = cache(resolve)  # one claim, one policy for all jobs of a handler in a queue
        return [self._claim(job, deadline, resolved) for job in jobs]

    def claim(self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve) -> list[Lease]:
        if self._owner.name is None:
            raise StoreError("claim: join first, so that the leases have an owner")
        with self._state.transaction():
            return self.claim_ready([job for take in takes for job in self._pick(take)], ttl, resolve)

    def _pick(self, take: ClaimRequest) -> list[JobRecord]:
        if take.queue in self._state.paused:
            return []
        fresh = self._state.candidates(take.queue, Tier.FRESH, take.limit)
        retries = self._state.candidates(take.queue, Tier.RETRY, min(take.limit, take.max_retries_claimed))
        urgent = sum(job.row.priority >= take.urgent for job in fresh)
        return take.pick(fresh, urgent, retries)

    def _claim(self, job: JobRecord, deadline: int, resolve: Resolve) -> Lease:
        row = job.row
        self._state.begin(job, self._owner.name or "", deadline, resolve(row.handler, row.queue))
        if self._state.turns:
            self._links.groups.claimed(job)
        return job.lease()
