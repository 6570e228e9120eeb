"""The run times of each handler's jobs, which decide the size of the frames that are sent to workers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

FRAME_SECONDS = 0.010
FRAME_JOBS = 256
FRAME_BYTES = 256 * 1024
"""The limits of a frame. Its seconds are those that its jobs are expected to take."""


class RunTimes:
    """Smoothed run times, in seconds: by handler, and `mean` of all jobs.

    The time of a handler rises by half of the difference to a longer run, and falls by a tenth of that to a shorter one.
    """

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
        """Add the run times of one or more jobs of this handler, in order."""
        known = self._by_handler.get(handler, times[0])
        mean = times[0] if self.mean is None else self.mean
        for took in times:
            known += (took - known) * (0.5 if took > known else 0.1)
            mean += (took - mean) * 0.05
        self._by_handler[handler], self.mean = known, mean

    def learn_each(self, handlers: Sequence[str], times: Sequence[float]) -> None:
        """Add the run times of jobs, each with its handler, in order. Hot path."""
        if handlers.count(handlers[0]) == len(handlers):
            self.learn(handlers[0], times)
            return
        start = 0
        for handler, run in groupby(handlers):
            end = start + len([*run])
            self.learn(handler, times[start:end])
            start = end

    def at_least(self, handler: str, seconds: float) -> None:
        """Raise the run time of a handler to what its running job has taken so far."""
        if (self._by_handler.get(handler) or 0.0) < seconds:
            self._by_handler[handler] = seconds
