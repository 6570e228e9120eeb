"""One of many identical lines."""

from __future__ import annotations

from collections.abc import Callable, Hashable

MAX_KEYS = 1000


class Repeats:
    """Lets a thing be said once per `every` seconds of `clock`, and counts the times between."""

    def __init__(self, clock: Callable[[], float], every: float = 60.0) -> None:
        self._clock = clock
        self._every = every
        self._seen: dict[Hashable, tuple[float, int]] = {}

    def allow(self, key: Hashable) -> int | None:
        """None to keep silent; else how many times it was kept silent since it was last said."""
        now = self._clock()
        last, held = self._seen.get(key, (None, 0))
        if last is not None and now - last < self._every:
            self._seen[key] = (last, held + 1)
            return None
        if len(self._seen) >= MAX_KEYS:
            self._seen.clear()
        self._seen[key] = (now, 0)
        return held
