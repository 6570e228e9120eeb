"""Takes over leases that ended without an outcome, through the one retry path."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from supervisor.engine.store_writer import Writer
from supervisor.events import Bus, LeasesRecovered
from supervisor.jobs import Outcome
from supervisor.retry import lapse
from supervisor.stores.protocol import Lapsed

SEEN_AT_ONCE = 5_000
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
        recovered, met = 0, set[Sighting]()
        after: Lapsed | None = None
        while True:
            lapsed = await self._writer.submit(lambda store, after=after: store.lapsed(SEEN_AT_ONCE, after))  # type: ignore[misc]
            due = self._due(lapsed)
            for start in range(0, len(due), BATCH):
                recovered += await self._recover(due[start : start + BATCH])
            met.update(map(_sighting, lapsed))
            if len(lapsed) < SEEN_AT_ONCE:
                self._seen = {sighting: since for sighting, since in self._seen.items() if sighting in met}
                return recovered
            after = lapsed[-1]

    async def _recover(self, due: Sequence[Lapsed]) -> int:
        """What the store did not give is watched anew: somebody may have locked it, whom its owner waits for too."""
        outcomes = [self._decide(_outcome(lapsed)) for lapsed in due]
        stale = set(await self._writer.submit(lambda store: store.recover(outcomes)))
        for lapsed in due:
            if lapsed.lease.id in stale:
                self._seen.pop(_sighting(lapsed), None)
        taken = [outcome for outcome in outcomes if outcome.lease.id not in stale]
        if taken:
            self._bus.emit(LeasesRecovered(taken))
        return len(taken)

    def _due(self, lapsed: list[Lapsed]) -> list[Lapsed]:
        now = self._now()
        since = [self._seen.setdefault(_sighting(one), now) for one in lapsed]
        return [one for one, seen in zip(lapsed, since, strict=True) if one.owner_gone or now - seen >= self._patience]


def _sighting(lapsed: Lapsed) -> Sighting:
    return lapsed.lease.id, lapsed.lease.token, lapsed.deadline


def _outcome(lapsed: Lapsed) -> Outcome:
    how = "is gone" if lapsed.owner_gone else "did not extend it"
    message = f"the lease ended without an outcome: its owner {lapsed.owner} {how}"
    return lapse(lapsed.lease, started=lapsed.started, lapses=lapsed.lapses, deadline=lapsed.deadline, message=message)
