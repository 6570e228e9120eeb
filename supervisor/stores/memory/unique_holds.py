"""The unique keys of a memory store with the jobs that have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class UniqueHold(NamedTuple):
    """The job that has a unique key, and for how long: see `stores.unique.hold_of`."""

    job_id: int
    below: int
    until: int | None


class UniqueHolds:
    """Holds by key. What was set since `begin` can be undone."""

    def __init__(self) -> None:
        self._by_key: dict[str, UniqueHold] = {}
        self._before: list[tuple[str, UniqueHold | None]] = []

    def get(self, key: str) -> UniqueHold | None:
        return self._by_key.get(key)

    def set(self, key: str, hold: UniqueHold | None) -> None:
        self._before.append((key, self._by_key.get(key)))
        if hold is None:
            self._by_key.pop(key, None)
        else:
            self._by_key[key] = hold

    def past(self, now: int) -> Iterator[str]:
        """Yield the keys that were taken for a time, which is over."""
        return (key for key, hold in self._by_key.items() if hold.until is not None and hold.until <= now)

    def key_of(self, id: int, now: int) -> str | None:
        """Return the key that this job has for a time, if it has one. It looks at all keys."""
        its = (
            key
            for key, hold in self._by_key.items()
            if hold.job_id == id and hold.until is not None and hold.until > now
        )
        return next(its, None)

    def clear(self) -> None:
        for key in list(self._by_key):
            self.set(key, None)

    def begin(self) -> None:
        self._before.clear()

    def undo(self) -> None:
        for key, hold in reversed(self._before.copy()):
            self.set(key, hold)
        self._before.clear()
