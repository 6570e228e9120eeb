"""Takes over leases that ended without an outcome, through the one retry path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from supervisor.engine.store_writer import Writer
from supervisor.events import Bus, LeasesRecovered
from supervisor.jobs import Outcome
from supervisor.retry import expired_lease_outcome
from supervisor.stores.protocol import Store
from supervisor.stores.records import ExpiredLease

SEEN_AT_ONCE = 5_000
BATCH = 500
SeenLease = tuple[int, int, int]


class Recovery:
    """Leases of an owner provably dead: at once. Others: after this observer has seen them expired and unchanged for ttl/2 on
    its own monotonic clock, with the store reachable throughout."""

    def __init__(
        self, writer: Writer, ttl: float, bus: Bus, *, now: Callable[[], float], decide: Callable[[Outcome], Outcome]
    ) -> None:
        self._writer = writer
        self._timeout = ttl / 2
        self._bus = bus
        self._now = now
        self._decide = decide
        self._seen: dict[SeenLease, float] = {}

    def forget(self) -> None:
        """The store was away, or this process stood still: what was seen before proves nothing."""
        self._seen.clear()

    async def sweep(self) -> int:
        """Recover what may be recovered now; gives how many jobs were."""
        recovered, met = 0, set[SeenLease]()
        after: ExpiredLease | None = None
        while True:
            expired_leases = await self._writer.submit(partial(_expired_leases, after=after))
            due = self._due(expired_leases)
            for start in range(0, len(due), BATCH):
                recovered += await self._recover(due[start : start + BATCH])
            met.update(map(_seen_lease, expired_leases))
            if len(expired_leases) < SEEN_AT_ONCE:
                self._seen = {seen: since for seen, since in self._seen.items() if seen in met}
                return recovered
            after = expired_leases[-1]

    async def _recover(self, due: Sequence[ExpiredLease]) -> int:
        """What the store did not give is watched anew: somebody may have locked it, whom its owner waits for too."""
        outcomes = [self._decide(_outcome(expired)) for expired in due]
        stale = set(await self._writer.submit(lambda store: store.recover(outcomes)))
        for expired in due:
            if expired.lease.id in stale:
                self._seen.pop(_seen_lease(expired), None)
        taken = [outcome for outcome in outcomes if outcome.lease.id not in stale]
        if taken:
            self._bus.emit(LeasesRecovered(taken))
        return len(taken)

    def _due(self, expired_leases: list[ExpiredLease]) -> list[ExpiredLease]:
        now = self._now()
        since = [self._seen.setdefault(_seen_lease(one), now) for one in expired_leases]
        return [
            one
            for one, seen in zip(expired_leases, since, strict=True)
            if one.owner_gone or now - seen >= self._timeout
        ]


def _expired_leases(store: Store, after: ExpiredLease | None) -> list[ExpiredLease]:
    return store.expired_leases(SEEN_AT_ONCE, after)


def _seen_lease(expired: ExpiredLease) -> SeenLease:
    return expired.lease.id, expired.lease.token, expired.deadline


def _outcome(expired: ExpiredLease) -> Outcome:
    how = "is gone" if expired.owner_gone else "did not extend it"
    message = f"the lease ended without an outcome: its owner {expired.owner} {how}"
    return expired_lease_outcome(
        expired.lease,
        started=expired.started,
        expired_count=expired.expired_count,
        deadline=expired.deadline,
        message=message,
    )
