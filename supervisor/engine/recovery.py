"""Takes over leases that ended without an outcome, through the one retry path."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.engine.writer import Writer
from supervisor.events import Bus, LeasesRecovered
from supervisor.jobs import Outcome
from supervisor.retry import lapse
from supervisor.stores.base import Lapsed, Store

BATCH = 500
Sighting = tuple[int, int, int]


class Recovery:
    """Leases of an owner provably dead: at once. Others: after this observer has seen them expired and unchanged for ttl/2 on
    its own monotonic clock, with the store reachable throughout."""

    def __init__(
        self, writer: Writer, ttl: float, bus: Bus, *, now: Callable[[], float], decide: Callable[[Outcome], Outcome]
    ) -> None:
        self._writer = writer
        self._patience = ttl / 2
        self._bus = bus
        self._now = now
        self._decide = decide
        self._seen: dict[Sighting, float] = {}

    def forget(self) -> None:
        """The store was away, or this process stood still: what was seen before proves nothing."""
        self._seen.clear()

    async def sweep(self) -> int:
        """Recover what may be recovered now; gives how many jobs were."""
        recovered = 0
        while True:
            lapsed = await self._writer.submit(_lapsed)
            due = self._due(lapsed)
            if not due:
                return recovered
            outcomes = [self._decide(_outcome(lapsed)) for lapsed in due]
            stale = set(await self._writer.submit(lambda store, outcomes=outcomes: store.recover(outcomes)))  # type: ignore[misc]
            taken = [outcome for outcome in outcomes if outcome.lease.id not in stale]
            if taken:
                self._bus.emit(LeasesRecovered(taken))
            recovered += len(taken)
            if len(lapsed) < BATCH or not taken:
                return recovered

    def _due(self, lapsed: list[Lapsed]) -> list[Lapsed]:
        now = self._now()
        seen: dict[Sighting, float] = {}
        due = []
        for one in lapsed:
            sighting = (one.lease.id, one.lease.token, one.deadline)
            since = seen[sighting] = self._seen.get(sighting, now)
            if one.owner_gone or now - since >= self._patience:
                due.append(one)
        self._seen = seen
        return due


def _outcome(lapsed: Lapsed) -> Outcome:
    how = "is gone" if lapsed.owner_gone else "did not extend it"
    message = f"the lease ended without an outcome: its owner {lapsed.owner} {how}"
    return lapse(lapsed.lease, started=lapsed.started, lapses=lapsed.lapses, deadline=lapsed.deadline, message=message)


def _lapsed(store: Store) -> list[Lapsed]:
    return store.lapsed(BATCH)
