"""The leases this supervisor holds: kept alive, checked, and given up when the store says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from supervisor.engine.store_writer import Writer
from supervisor.jobs import Lease, Outcome
from supervisor.stores.protocol import Store


class Leases:
    """From the claim until the outcome is settled. An extend repeats every ttl/3, so one may fail before a lease ends."""

    def __init__(self, writer: Writer, ttl: float, running: Callable[[], list[Lease]]) -> None:
        self._writer = writer
        self._ttl = ttl
        self._running = running
        self._held: dict[int, Lease] = {}
        self.size = 0
        """Characters of the payloads held."""
        self._extending: asyncio.Future[list[int]] | None = None
        self._checking: asyncio.Future[list[tuple[int, int]]] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def add(self, leases: Sequence[Lease]) -> None:
        self.size += _weight(leases) - _weight(self.same_jobs(leases))
        self._held.update({lease[0]: lease for lease in leases})

    def drop(self, leases: Iterable[Lease]) -> None:
        """Those that are held."""
        held, size = self._held, 0
        for lease in leases:
            ours = held.get(lease[0])
            if ours is not None and ours[1] == lease[1]:
                del held[lease[0]]
                size += len(ours[4])
        self.size -= size

    def holds(self, lease: Lease) -> bool:
        return bool(self.of_ours((lease,)))

    def of_ours(self, leases: Iterable[Lease]) -> list[Lease]:
        """Those of these leases that are held."""
        held = self._held
        return [lease for lease in leases if (ours := held.get(lease[0])) is not None and ours[1] == lease[1]]

    def outcomes_of_ours(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        held = self._held
        return [o for o in outcomes if (ours := held.get(o[0][0])) is not None and ours[1] == o[0][1]]

    def same_jobs(self, leases: Iterable[Lease]) -> list[Lease]:
        """What is held of the jobs of these leases."""
        return [self._held[lease[0]] for lease in leases if lease[0] in self._held]

    async def extended(self) -> None:
        """Once the extend under way, if any, has been answered."""
        if self._extending is not None and not self._extending.done():
            await self._extending

    async def extend(self) -> list[Lease]:
        """New deadlines for all, start marks for what runs; gives the leases that are no longer ours."""
        if self._extending is not None and not self._extending.done():
            return []  # the store is away: the one under way is tried until it is back
        leases, running, ttl = list(self._held.values()), self._running(), self._ttl
        if not leases:
            return []
        self._extending = self._writer.submit(lambda store: store.extend(leases, ttl, running))
        stale = set(await self._extending)
        return [lease for lease in leases if lease.id in stale and self.holds(lease)]

    async def check(self) -> tuple[list[Lease], list[tuple[int, int]]]:
        """What we hold and the store says is not ours (cancelled, taken over), and what it says is ours and we don't hold."""
        if self._checking is not None and not self._checking.done():
            return [], []
        before = dict(self._held)
        self._checking = self._writer.submit(_held)
        ours = dict(await self._checking)
        lost = [lease for id, lease in before.items() if ours.get(id) != lease.token and self.holds(lease)]
        known = self._held.keys() | before.keys()
        untracked = [(id, token) for id, token in ours.items() if id not in known]
        return lost, untracked


def _weight(leases: Iterable[Lease]) -> int:
    return sum([len(lease[4]) for lease in leases])


def _held(store: Store) -> list[tuple[int, int]]:
    return store.held()
