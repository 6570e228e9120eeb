"""Hold back identical lines of the log."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from supervisor.text.units import counted

MAX_KEYS = 1000  # that a rate limit remembers
REPEAT_AFTER = 60.0  # seconds until an identical line is let through again


class RateLimit:
    """Allows each key `most` times in `seconds` of `clock`, by default once a minute, and counts how often it was held back since."""

    def __init__(self, clock: Callable[[], float], most: int = 1, seconds: float = REPEAT_AFTER) -> None:
        self._clock = clock
        self._most, self._seconds = most, seconds
        self._seen: dict[Hashable, tuple[float, int, int]] = {}

    def allow(self, key: Hashable) -> int | None:
        """Return how often the key was held back since it was last allowed, or None if it is held back now."""
        now = self._clock()
        since, allowed, held = self._seen.get(key, (now, 0, 0))
        if now - since >= self._seconds:
            since, allowed = now, 0
        if allowed >= self._most:
            self._seen[key] = (since, allowed, held + 1)
            return None
        if len(self._seen) >= MAX_KEYS:
            self._seen.clear()
        self._seen[key] = (since, allowed + 1, 0)
        return held


def times(held: int) -> str:
    """Return how often a line was held back, to append to it."""
    return f" ({counted(held, 'more time')} since the last such line)" if held else ""
