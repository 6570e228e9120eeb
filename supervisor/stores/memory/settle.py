"""Settle, extend and recover in memory, with a check of the token, the state and, in recovery, the deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from supervisor.jobs import JobState, Kind, Lease, Outcome, Tier
from supervisor.retry import ADD, RESET, SUSPECT, expired_count_change
from supervisor.stores.codes import LEFT, STATES
from supervisor.stores.job_reports import JobReport
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.links import Links
from supervisor.stores.memory.other_records import DeadLetterRecord
from supervisor.stores.memory.ownership import Ownership
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.records import (
    MAX_ATTEMPTS_KEPT,
    ExpiredLease,
    code_of_state,
    failure_record,
    microseconds,
    require_seen,
)


class Settles:
    def __init__(self, state: MemoryState, owner: Ownership, links: Links) -> None:
        self._state, self._owner, self._links = state, owner, links

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        with self._state.transaction():
            now = self._state.now()
            return [
                outcome.lease.id for outcome in outcomes if not (self._settle(outcome, now) or self._settled(outcome))
            ]

    def recover(self, outcomes: Sequence[Outcome]) -> list[int]:
        require_seen(outcomes)
        with self._state.transaction():
            now = self._state.now()
            return [outcome.lease.id for outcome in outcomes if not self._settle(outcome, now)]

    def _settled(self, outcome: Outcome) -> bool:
        job = self._state.jobs.get(outcome.lease.id)
        return job is not None and job.settled == outcome.lease.token

    def _settle(self, outcome: Outcome, now: int) -> bool:
        """Hot path."""
        job = self._state.leased(outcome.lease)
        if job is None or (outcome.seen is not None and job.lease_until != outcome.seen):
            return False
        if outcome.state is JobState.SUCCEEDED and outcome.seen is None:
            started = job.started_at if outcome.took is None else now - microseconds(outcome.took)
            self._state.succeed(job, outcome.result, started, now)
            self._links.ended(job)
            return True
        state = STATES[code_of_state(outcome)]
        changes: dict[str, Any] = {"state": state, "owner": None, "result": outcome.result}
        if (change := expired_count_change(outcome)) == RESET:
            changes["expired_count"] = 0
        elif change == ADD:
            added = job.expired_count < SUSPECT if job.started_at is None else 2
            changes["expired_count"] = job.expired_count + added
        if outcome.seen is None:
            changes["settled"] = job.token
        if outcome.took is not None:
            changes["started_at"] = now - microseconds(outcome.took)
        if state.terminal:
            changes["finished_at"] = now
        elif outcome.counted or state is JobState.SCHEDULED:
            changes["due_at"] = now + microseconds(outcome.delay)
        if outcome.counted:
            changes |= {"retries": job.retries + 1, "tier": Tier.RETRY, "age": changes.get("due_at", job.age)}
        if outcome.failure is not None:
            changes["errors"] = _thinned((*job.errors, failure_record(outcome.failure, outcome.lease, now)))
        if outcome.kind is Kind.SNOOZED:
            changes |= {"snoozes": job.snoozes + 1, "snoozed_until": changes["due_at"]}
        if outcome.dead_letter:
            token = job.dead_letter.token + 1 if job.dead_letter else 0
            sinks = self._owner.owed()
            changes["dead_letter"] = DeadLetterRecord(now, token, owed=sinks, state="pending" if sinks else "delivered")
        self._state.change_to(job, changes)
        if state.terminal:
            self._links.ended(job)
        return True

    def extend(self, leases: Sequence[Lease], ttl: float, started: Sequence[Lease]) -> list[int]:
        with self._state.transaction():
            now = self._state.now()
            for lease in leases:
                if (job := self._state.leased(lease)) is not None:
                    self._state.change(job, lease_until=now + microseconds(ttl))
            for lease in started:
                if (job := self._state.leased(lease)) is not None:
                    self._state.change(job, started_at=now if job.started_at is None else job.started_at)
            return sorted({lease.id for lease in (*leases, *started) if self._state.leased(lease) is None})

    def keep_reports(self, reports: Sequence[JobReport]) -> None:
        with self._state.transaction():
            for id, token, progress, log in reports:
                job = self._state.jobs.get(id)
                if job is not None and job.token == token:
                    changes = {} if progress is None else {"progress": progress, "progress_at": self._state.now()}
                    self._state.change(job, **changes, **({} if log is None else {"log": log}))

    def snoozes(self, leases: Sequence[Lease]) -> dict[int, int]:
        with self._state.lock:
            return {
                job.id: job.snoozes
                for lease in leases
                if (job := self._state.leased(lease)) is not None and job.snoozes
            }

    def held(self) -> list[tuple[int, int]]:
        with self._state.lock:
            return [(job.id, job.token) for job in self._own()]

    def leases(self, ids: Sequence[int]) -> list[Lease]:
        with self._state.lock:
            return [job.lease() for job in self._own() if job.id in set(ids)]

    def _own(self) -> list[JobRecord]:
        return [job for job in self._state.in_flight() if job.owner == self._owner.name]

    def expired_leases(self, limit: int, after: ExpiredLease | None = None) -> list[ExpiredLease]:
        with self._state.lock:
            self._state.forget_owners()
            now, found = self._state.now(), []
            for job in self._state.in_flight():
                owner = self._state.owners.get(job.owner or "")
                gone = owner is not None and owner.presence.state == LEFT
                if job.owner != self._owner.name and (gone or job.lease_until <= now):
                    started, lease = job.started_at is not None, job.lease()._replace(payload="", headers=None)
                    found.append(ExpiredLease(lease, job.lease_until, started, job.owner or "", gone))
            found.sort(key=attrgetter("place"))
            return [one for one in found if after is None or one.place > after.place][:limit]


def _thinned(errors: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    if len(errors) <= MAX_ATTEMPTS_KEPT:
        return errors
    first, *rest = errors
    return (first, *rest[1 - MAX_ATTEMPTS_KEPT :])
