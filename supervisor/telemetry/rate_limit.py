"""Hold back identical lines of the log."""

from __future__ import annotations

from collections.abc import Callable, Hashable

MAX_KEYS = 1000  # that a rate limit remembers
REPEAT_AFTER = 60.0  # seconds until an identical line is let through again


class RateLimit:
    """Allows each key once a minute of `clock`, and counts how often it was held back since."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[Hashable, tuple[float, int]] = {}

    def allow(self, key: Hashable) -> int | None:
        """Return how often the key was held back since it was last allowed, or None if it is held back now."""
        now = self._clock()
        last, held = self._seen.get(key, (None, 0))
        if last is not None and now - last < REPEAT_AFTER:
            self._seen[key] = (last, held + 1)
            return None
        if len(self._seen) >= MAX_KEYS:
            self._seen.clear()
        self._seen[key] = (now, 0)
        return held
