"""Lets one of many identical log lines through."""

from __future__ import annotations

from collections.abc import Callable, Hashable

MAX_KEYS = 1000


class RateLimit:
    """Allows each key once per `every` seconds of `clock`, and counts how often it was held back since."""

    def __init__(self, clock: Callable[[], float], every: float = 60.0) -> None:
        self._clock = clock
        self._every = every
        self._seen: dict[Hashable, tuple[float, int]] = {}

    def allow(self, key: Hashable) -> int | None:
        """Return how often the key was held back since it was last allowed, or None if it is held back now."""
        now = self._clock()
        last, held = self._seen.get(key, (None, 0))
        if last is not None and now - last < self._every:
            self._seen[key] = (last, held + 1)
            return None
        if len(self._seen) >= MAX_KEYS:
            self._seen.clear()
        self._seen[key] = (now, 0)
        return held
