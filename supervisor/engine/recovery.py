"""Recover the jobs of leases that ended without an outcome, through the one retry path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from supervisor.engine.committer import RetryDecider, Summary, summary
from supervisor.engine.limits import Limits
from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.events import Bus, LeasesRecovered
from supervisor.jobs import Outcome
from supervisor.retry import expired_lease_outcome
from supervisor.stores.protocol import Store
from supervisor.stores.records import ExpiredLease

SeenLease = tuple[int, int, int]
"""(job id, fencing token, deadline)"""


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
            due = self._due(expired_leases)
            for start in range(0, len(due), self._limits.recovered_at_once):
                recovered += await self._recover(due[start : start + self._limits.recovered_at_once])
            met.update(map(_seen_lease, expired_leases))
            if len(expired_leases) < self._limits.expired_seen_at_once:
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
        outcomes = [self._decider.decide(_outcome(expired)) for expired in due]
        stale = {expired.lease.id for expired in due}
        try:
            stale = set(await self._writer.submit(lambda store: store.recover(outcomes), Purpose.RECOVER))
        finally:
            self._decider.refund([expired.lease for expired in due if expired.lease.id in stale])
        for expired in due:
            if expired.lease.id in stale:
                self._seen.pop(_seen_lease(expired), None)
        accepted = [outcome for outcome in outcomes if outcome.lease.id not in stale]
        if accepted:
            self._bus.emit(LeasesRecovered(accepted))
            self._on_recovered(summary(accepted))
        return len(accepted)


def _seen_lease(expired: ExpiredLease) -> SeenLease:
    return expired.lease.id, expired.lease.token, expired.deadline


def _outcome(expired: ExpiredLease) -> Outcome:
    how = "is gone" if expired.owner_gone else "did not extend it"
    message = f"the lease ended without an outcome: its owner {expired.owner} {how}"
    return expired_lease_outcome(expired.lease, started=expired.started, deadline=expired.deadline, message=message)
