"""Calls a function in regular periods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from supervisor.runtime.tasks import start_task


class PeriodicTimer:
    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self, period: float, act: Callable[[], None]) -> None:
        """Call `act` every `period` seconds from now on."""
        self._task = start_task(run_every(period, act))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def run_every(period: float, act: Callable[[], None]) -> None:
    """Call `act` every `period` seconds, without drift: each call follows from the schedule, not from the end of the last one.

    Calls that were missed while the loop stood still are not made up for: there is one call, and a new schedule from there.
    """
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due = max(due + period, loop.time())
        await asyncio.sleep(due - loop.time())
        act()
