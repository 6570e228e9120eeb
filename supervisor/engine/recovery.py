"""Recover the jobs of leases that ended without an outcome, through the one retry path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from supervisor.engine.committer import RetryDecider, Summary, summary
from supervisor.engine.limits import Limits
from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.events import Bus, LeasesRecovered
from supervisor.jobs import Outcome
from supervisor.retry import SOLE_SUSPECT, SUSPECT, expired_lease_outcome
from supervisor.stores.protocol import Store
from supervisor.stores.records import ExpiredLease

SeenLease = tuple[int, int, int]
"""(job id, fencing token, deadline)"""
CERTAIN = 12
"""From this `expired_count` on, a job that was alone in its supervisor is blamed, even if another supervisor was lost with it."""


@dataclass
class Loss:
    """The jobs that ran, or may have run, when an owner was lost, and the latest deadline of their leases."""

    seen_at: float
    deadline: int = 0
    jobs: set[int] = field(default_factory=set)


class Losses:
    """Remembers which jobs each owner was lost with, since they are not all recovered at one time."""

    def __init__(self, ttl: float, now: Callable[[], float]) -> None:
        self._ttl, self._now = ttl, now
        self._of_owners: dict[str, Loss] = {}
        self._whole = True

    def note(self, expired_leases: Sequence[ExpiredLease], *, whole: bool) -> None:
        """Note leases that have expired, and whether these are the `whole` rest."""
        self._whole = whole
        now = self._now()
        self._of_owners = {owner: it for owner, it in self._of_owners.items() if now - it.seen_at < self._ttl}
        for expired in expired_leases:
            loss = self._of_owners.setdefault(expired.owner, Loss(now))
            loss.seen_at, loss.deadline = now, max(loss.deadline, expired.deadline)
            if expired.started or expired.lease.expired_count < SUSPECT:  # a suspect has its mark before it runs
                loss.jobs.add(expired.lease.id)

    def alone(self, expired: ExpiredLease) -> bool:
        """Return whether it was this job, and no other, that ran when its supervisor was lost, or those that were lost with it."""
        mine, id = self._of_owners[expired.owner], expired.lease.id
        if not self._whole or mine.jobs != {id}:
            return False
        together = self._ttl / 2 * 1e6  # leases are extended every third of their time to live
        return expired.lease.expired_count >= CERTAIN or not any(
            other.jobs and id not in other.jobs and abs(other.deadline - mine.deadline) < together
            for other in self._of_owners.values()  # one that had this job too was lost before
        )


class Recovery:
    """Recovers at once the leases of an owner that is provably gone. It recovers others after it has seen them expired and
    unchanged for half their time to live on its own monotonic clock, with the store available all the while."""

    def __init__(
        self, writer: Writer, decider: RetryDecider, bus: Bus, *, ttl: float, now: Callable[[], float], limits: Limits,
        on_recovered: Callable[[Summary], None],
    ) -> None:  # fmt: skip
        self._writer = writer
        self._wait = ttl / 2
        self._decider = decider
        self._bus = bus
        self._now = now
        self._limits = limits
        self._on_recovered = on_recovered
        self._seen: dict[SeenLease, float] = {}
        self._losses = Losses(ttl, now)
        self._outages = writer.outages

    def forget(self) -> None:
        """Forget what was seen: it proves nothing if the store was unavailable, this process did not run, or a clock was set."""
        self._seen.clear()

    async def recover_all(self) -> None:
        """Sweep until nothing is left that may be recovered at once."""
        with suppress(NotDone):
            while await self.sweep():
                pass

    async def sweep(self) -> int:
        """Recover what may be recovered now. Return the number of jobs."""
        recovered, met = 0, set[SeenLease]()
        after: ExpiredLease | None = None
        while True:
            expired_leases = await self._writer.submit(partial(self._expired_leases, after=after), Purpose.FIND_EXPIRED)
            whole = len(expired_leases) < self._limits.expired_seen_at_once
            self._losses.note(expired_leases, whole=whole)
            due = _suspects_first(expired_leases, self._due(expired_leases))
            for start in range(0, len(due), self._limits.recovered_at_once):
                recovered += await self._recover(due[start : start + self._limits.recovered_at_once])
            met.update(map(_seen_lease, expired_leases))
            if whole:
                self._seen = {seen: since for seen, since in self._seen.items() if seen in met}
                return recovered
            after = expired_leases[-1]

    def _expired_leases(self, store: Store, after: ExpiredLease | None) -> list[ExpiredLease]:
        return store.expired_leases(self._limits.expired_seen_at_once, after)

    def _due(self, expired_leases: list[ExpiredLease]) -> list[ExpiredLease]:
        if self._writer.outages != self._outages:
            self._outages = self._writer.outages
            self.forget()
        now = self._now()
        since = [self._seen.setdefault(_seen_lease(expired), now) for expired in expired_leases]
        return [
            expired
            for expired, seen in zip(expired_leases, since, strict=True)
            if expired.owner_gone or now - seen >= self._wait
        ]

    async def _recover(self, due: Sequence[ExpiredLease]) -> int:
        """Recover these leases. Those that the store did not recover are observed anew: another client of the database may have
        locked their rows, and their owner may wait for that lock too."""
        outcomes = [self._decider.decide(_outcome(expired, self._losses.alone(expired))) for expired in due]
        stale, unblocked = {expired.lease.id for expired in due}, frozenset[str]()
        try:
            stale, unblocked = await self._writer.submit(lambda store: _recovered(store, outcomes), Purpose.RECOVER)
        finally:
            self._decider.refund([expired.lease for expired in due if expired.lease.id in stale])
        for expired in due:
            if expired.lease.id in stale:
                self._seen.pop(_seen_lease(expired), None)
        accepted = [outcome for outcome in outcomes if outcome.lease.id not in stale]
        if accepted:
            self._bus.emit(LeasesRecovered(accepted))
            self._on_recovered(summary(accepted, unblocked=unblocked | self._decider.freed(accepted)))
        return len(accepted)


def _recovered(store: Store, outcomes: Sequence[Outcome]) -> tuple[set[int], frozenset[str]]:
    """Return the ids of the jobs that were not recovered, and the queues of jobs that waited for the others."""
    return {*store.recover(outcomes)}, store.newly_ready()


def _seen_lease(expired: ExpiredLease) -> SeenLease:
    return expired.lease.id, expired.lease.token, expired.deadline


def _suspects_first(expired_leases: Sequence[ExpiredLease], due: list[ExpiredLease]) -> list[ExpiredLease]:
    """Return the leases that are due, those of sole suspects first, and none of an owner with one that is not due yet: once the others
    are recovered, a supervisor that starts does not see that they ran."""
    suspects = [expired for expired in expired_leases if expired.lease.expired_count >= SOLE_SUSPECT]
    if not suspects:
        return due
    of_due = {expired.lease.id for expired in due}
    waiting = {expired.owner for expired in suspects if expired.lease.id not in of_due}
    due = [expired for expired in due if expired.owner not in waiting]
    return sorted(due, key=lambda expired: expired.lease.expired_count < SOLE_SUSPECT)


def _outcome(expired: ExpiredLease, alone: bool) -> Outcome:
    how = "is gone" if expired.owner_gone else "did not extend it"
    message = f"the lease ended without an outcome: its owner {expired.owner}, which ran no other job, {how}"
    return expired_lease_outcome(expired.lease, alone=alone, deadline=expired.deadline, message=message)
