"""The delays before workers are forked again that end before they are of use."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.retry import GrowingDelay
from supervisor.workers.interface import State, Timer
from supervisor.workers.slot import WorkerSlot

REFORK_DELAYS = (0.1, 30.0)  # seconds, the first and the longest
USEFUL_AFTER = 1.0  # seconds


class ReforkDelays:
    """Counts the forks that are waiting for a delay, and calls `fork` when each may be made.

    A worker was of no use if it ended before it was ready, or within a second after that with no job done. The first of the
    latter kind is replaced at once. The delay grows once for all workers that end during one delay: otherwise a pool of many
    workers would soon wait for the longest delay.
    """

    def __init__(self, timer: Timer, fork: Callable[[], None]) -> None:
        self._timer = timer
        self._fork = fork
        self._delays = GrowingDelay(*REFORK_DELAYS)
        self._delay = 0.0
        self._delay_stands_until = 0.0
        self._excused = False
        self._waiting: set[object] = set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def failing(self) -> bool:
        """Whether no worker was of use since the last one that was of none."""
        return self._delays.failing

    def was_useless(self, slot: WorkerSlot) -> bool:
        """Return whether this worker, which ended without a job, was of no use."""
        if slot.ready_at is None:
            return slot.state is not State.RETIRING
        if slot.state not in (State.READY, State.EXITED):
            return False
        short = not slot.done and self._timer.time() - slot.ready_at < USEFUL_AFTER
        excused, self._excused = self._excused, self._excused or short
        return short and excused

    def add(self) -> None:
        now = self._timer.time()
        if now >= self._delay_stands_until:
            self._delay = self._delays.next()
            self._delay_stands_until = now + self._delay
        token = object()
        self._waiting.add(token)
        self._timer.call_later(self._delay, self._fork_now, token)

    def _fork_now(self, token: object) -> None:
        if token in self._waiting:
            self._waiting.remove(token)
            self._fork()

    def started(self, slot: WorkerSlot) -> None:
        """Note that the worker is ready: it is of use if it runs for a time."""
        self._timer.call_later(USEFUL_AFTER, self._was_useful, slot)

    def _was_useful(self, slot: WorkerSlot) -> None:
        if not slot.how:
            self.reset()

    def reset(self) -> None:
        """Make the next delay the shortest, since a worker was of use."""
        self._delays.reset()
        self._delay_stands_until, self._excused = 0.0, False

    def cancel(self) -> None:
        """Drop all forks that wait."""
        self._waiting.clear()
        self.reset()
