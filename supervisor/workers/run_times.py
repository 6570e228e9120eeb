"""How long handlers take, as the size of a frame needs it."""

from __future__ import annotations

from collections.abc import Sequence


class RunTimes:
    """What each handler has been taking, in seconds: quick to learn that one is slow, slow to forget it."""

    __slots__ = ("_by_handler", "mean")

    def __init__(self) -> None:
        self._by_handler: dict[str, float] = {}
        self.mean: float | None = None

    def of(self, handler: str) -> float | None:
        return self._by_handler.get(handler)

    @property
    def longest(self) -> float:
        return max(self._by_handler.values(), default=0.0)

    def learn(self, handler: str, times: Sequence[float]) -> None:
        """Jobs of it that took so long, in order."""
        known = self._by_handler.get(handler, times[0])
        mean = times[0] if self.mean is None else self.mean
        for took in times:
            known += (took - known) * (0.5 if took > known else 0.1)
            mean += (took - mean) * 0.05
        self._by_handler[handler], self.mean = known, mean

    def at_least(self, handler: str, seconds: float) -> None:
        """A job of it has already run so long without an end."""
        if (self._by_handler.get(handler) or 0.0) < seconds:
            self._by_handler[handler] = seconds
