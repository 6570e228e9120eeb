"""Settle, extend and recover in memory: fenced by token, state and, in recovery, deadline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from supervisor.errors import StoreError
from supervisor.jobs import JobState, Lease, Outcome, Tier
from supervisor.retry import ADD, KEEP, RESET, expired_count_change
from supervisor.stores.codes import LEFT
from supervisor.stores.memory.claim import Claims
from supervisor.stores.memory.state import DeadLetterRecord, JobRecord
from supervisor.stores.records import MAX_ATTEMPTS_KEPT, ExpiredLease, failure_record, microseconds, require_seen


class Settles(Claims):
    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        with self.transaction():
            return [outcome.lease.id for outcome in outcomes if not (self._settle(outcome) or self._settled(outcome))]

    def recover(self, outcomes: Sequence[Outcome]) -> list[int]:
        require_seen(outcomes)
        with self.transaction():
            return [outcome.lease.id for outcome in outcomes if not self._settle(outcome)]

    def _settled(self, outcome: Outcome) -> bool:
        job = self._memory.jobs.get(outcome.lease.id)
        return job is not None and job.settled == outcome.lease.token

    def _settle(self, outcome: Outcome) -> bool:
        job = self._leased(outcome.lease)
        if job is None or (outcome.seen is not None and job.lease_until != outcome.seen):
            return False
        if outcome.state is None:
            raise StoreError(f"job {job.id}: an outcome must be decided before it is settled")
        now = self._now()
        changes: dict[str, Any] = {"state": outcome.state, "owner": None, "result": outcome.result}
        changes["expired_count"] = {RESET: 0, KEEP: job.expired_count, ADD: job.expired_count + 1}[
            expired_count_change(outcome)
        ]
        if outcome.seen is None:
            changes["settled"] = job.token
        if outcome.took is not None:
            changes["started_at"] = now - microseconds(outcome.took)
        if outcome.state.terminal:
            changes["finished_at"] = now
        elif outcome.counted or outcome.state is JobState.SCHEDULED:
            changes["due_at"] = now + microseconds(outcome.delay)
        if outcome.counted:
            changes |= {"retries": job.retries + 1, "tier": Tier.RETRY, "age": changes.get("due_at", job.age)}
        if outcome.failure is not None:
            changes["errors"] = _thinned((*job.errors, failure_record(outcome.failure, outcome.lease, now)))
        if outcome.dead_letter:
            changes["dead_letter"] = DeadLetterRecord(now, token=job.dead_letter.token + 1 if job.dead_letter else 0)
        self._change(job, **changes)
        return True

    def _leased(self, lease: Lease) -> JobRecord | None:
        job = self._memory.jobs.get(lease.id)
        held = job is not None and job.state is JobState.IN_FLIGHT and job.token == lease.token
        return job if held else None

    def extend(self, leases: Sequence[Lease], ttl: float, started: Sequence[Lease]) -> list[int]:
        with self.transaction():
            now = self._now()
            stale = set()
            for lease in leases:
                if (job := self._leased(lease)) is not None:
                    self._change(job, lease_until=now + microseconds(ttl))
                else:
                    stale.add(lease.id)
            for lease in started:
                if (job := self._leased(lease)) is not None:
                    self._change(job, started_at=now if job.started_at is None else job.started_at)
                else:
                    stale.add(lease.id)
            return sorted(stale)

    def held(self) -> list[tuple[int, int]]:
        with self._memory.lock:
            return [(job.id, job.token) for job in self._in_flight() if job.owner == self._owner]

    def leases(self, ids: Sequence[int]) -> list[Lease]:
        with self._memory.lock:
            return [job.lease() for job in self._in_flight() if job.owner == self._owner and job.id in set(ids)]

    def _in_flight(self) -> Iterable[JobRecord]:
        return [self._memory.jobs[id] for id in sorted(self._memory.in_flight)]

    def expired_leases(self, limit: int, after: ExpiredLease | None = None) -> list[ExpiredLease]:
        with self._memory.lock:
            self._forget_owners()
            now, found = self._now(), []
            for job in self._in_flight():
                owner = self._memory.owners.get(job.owner or "")
                gone = owner is not None and owner.presence.state == LEFT
                if job.owner != self._owner and (gone or job.lease_until <= now):
                    started, lease = job.started_at is not None, job.lease()._replace(payload="", headers=None)
                    found.append(
                        ExpiredLease(lease, job.lease_until, started, job.expired_count, job.owner or "", gone)
                    )
            found.sort(key=attrgetter("place"))
            return [one for one in found if after is None or one.place > after.place][:limit]


def _thinned(errors: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    return errors if len(errors) <= MAX_ATTEMPTS_KEPT else (errors[0], *errors[1 - MAX_ATTEMPTS_KEPT :])
