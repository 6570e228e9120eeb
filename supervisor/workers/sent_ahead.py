"""The jobs that an async worker gets in addition to those that it may run at once.

It starts such a job as soon as another one has ended, without waiting for the supervisor, and always in the order of sending.
"""

from __future__ import annotations

from typing import Protocol

SHARE = 4
"""For so many jobs at once, one more is sent ahead."""
QUICK_SECONDS = 0.05
"""Jobs are sent ahead if they take less than this on average, so that they wait for a quarter of it or less."""


class Slot(Protocol):
    """The slot of a job. Its times are counted from `started`."""

    started: float


class SentAhead:
    """The slots whose jobs were sent ahead and have not started as far as known, by the numbers of their frames."""

    __slots__ = ("_concurrency", "_slots", "limit")

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._slots: dict[int, Slot] = {}
        self.limit = 0
        """How many jobs may be sent ahead now; 0 until a job ends if those sent ahead have waited for long."""

    def __contains__(self, frame: int) -> bool:
        return frame in self._slots

    def sent(self, frame: int, slot: Slot, busy: int) -> None:
        """Note that a job was sent, with which so many are sent and have not ended."""
        if busy > self._concurrency:
            self._slots[frame] = slot

    def ended(self, frame: int, now: float) -> None:
        """Note that a job has ended: so the next one that was sent ahead has started, unless it is the one that ended."""
        if self._slots and self._slots.pop(frame, None) is None:
            self._slots.pop(next(iter(self._slots))).started = now

    def forget(self, frame: int) -> None:
        """Note that the job has started, or was reclaimed."""
        self._slots.pop(frame, None)

    def learn(self, mean: float | None) -> None:
        """Note that jobs have ended, and what jobs take on average."""
        self.limit = self._concurrency // SHARE if mean is not None and mean < QUICK_SECONDS else 0
