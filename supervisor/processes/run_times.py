"""How long handlers take, as the size of a frame needs it."""

from __future__ import annotations


class RunTimes:
    """What each handler has been taking, in seconds: quick to learn that one is slow, slow to forget it."""

    __slots__ = ("_by_handler", "mean")

    def __init__(self) -> None:
        self._by_handler: dict[str, float] = {}
        self.mean: float | None = None

    def of(self, handler: str) -> float | None:
        return self._by_handler.get(handler)

    def learn(self, handler: str, took: float) -> None:
        known = self._by_handler.get(handler, took)
        self._by_handler[handler] = (known + took) / 2 if took > known else known + 0.1 * (took - known)
        mean = self.mean
        self.mean = took if mean is None else mean + 0.05 * (took - mean)

    def at_least(self, handler: str, seconds: float) -> None:
        """A job of it has already run so long without an end."""
        if (self._by_handler.get(handler) or 0.0) < seconds:
            self._by_handler[handler] = seconds
