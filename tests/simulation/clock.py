"""Virtual time: a clock that is set by the world, and asyncio loops that run step by step."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

MAX_TURNS = 10_000


class Clock:
    """Monotonic seconds, and the wall's, which can be set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ahead = 1_700_000_000.0

    def wall(self) -> float:
        return self.now + self.ahead


class NoSelector:
    """The loop's view of the world's descriptors: there are none."""

    def select(self, timeout: float | None) -> list[Any]:
        return []


class TurnedLoop(asyncio.BaseEventLoop):
    """A loop of one owner: `turn` runs what is ready and what is due by the clock, until it would have to wait. Owners meet
    in the store only, and what they do there takes time of its own; so nothing else can come in between."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._selector = NoSelector()
        self._clock_resolution = 1e-6
        self.readers: dict[int, Callable[[], None]] = {}
        self.faults: list[BaseException] = []
        self.set_exception_handler(self._note_fault)

    def _note_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(context.get("exception") or RuntimeError(context["message"]))

    def time(self) -> float:
        return self._clock.now

    def turn(self) -> None:
        asyncio._set_running_loop(self)
        try:
            for _ in range(MAX_TURNS):
                self._run_ready()
                due = self.next_due()
                if due is None or due > self._clock.now:
                    return
        finally:
            asyncio._set_running_loop(None)
        raise RuntimeError("the loop turns and turns, and no time passes")

    def _run_ready(self) -> None:
        """Do as `BaseEventLoop._run_once` of a loop that has no descriptors, in its order: the loops take half of a history's time."""
        ready, scheduled, end = self._ready, self._scheduled, self._clock.now + self._clock_resolution
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when < end):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if handle._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def next_due(self) -> float | None:
        """Return when there is something to do; now if anything is ready."""
        if self._ready:
            return self._clock.now
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        return scheduled[0]._when if scheduled else None

    def forget(self) -> None:
        """Drop everything, as if the process were killed."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False
            task.get_coro().close()
        self._ready.clear()
        self._scheduled.clear()

    # what asyncio asks of a loop

    def add_reader(self, fd: int, callback: Callable[..., Any], *args: Any) -> None:
        self.readers[fd] = callback

    def remove_reader(self, fd: int) -> bool:
        return self.readers.pop(fd, None) is not None

    def run_in_executor(self, executor: Any, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done = self.create_future()
        done.set_result(call(*args))
        return done

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
