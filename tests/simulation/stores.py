"""The stores of the simulated supervisors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.sqlite.store import SqliteStore


class InMemory:
    def __init__(self, wall: Callable[[], float]) -> None:
        self._first = MemoryStore(wall)
        self._opened: list[Any] = []

    def open(self) -> Any:
        self._opened.append(store := MemoryStore(state=self._first.state))
        return store

    def dies(self, store: Any, provably: bool) -> None:
        """Its owner was killed. `provably` is whether other supervisors can see that."""
        if provably:
            store.leave()

    def close(self) -> None:
        """Leave, since the pipes of an owner stay open until it has left."""
        for store in self._opened:
            store.leave()


class InFile:
    def __init__(self, wall: Callable[[], float], path: Path) -> None:
        self._wall = wall
        self._path = path
        self._opened: list[Any] = []

    def open(self) -> Any:
        self._opened.append(
            store := SqliteStore(self._path, create=True, synchronous="normal", clock=self._wall, random_part=lambda: 0)
        )
        return store

    def dies(self, store: Any, provably: bool) -> None:
        """Its lock is released, unless its forkserver or workers still hold it."""
        if provably:
            self._opened.remove(store)
            _vanish(store)

    def close(self) -> None:
        for store in self._opened:
            _vanish(store)


def _vanish(store: Any) -> None:
    """Close its descriptors and nothing else, as the kernel does for a killed process."""
    store.notifier.unbind()
    store.owner_lock.release()
    store.close()
