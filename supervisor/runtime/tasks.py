"""The supervisor's own tasks: an error in one of them is reported at once, so that the supervisor ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from supervisor.engine.tasks import report_error


def start_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task whose error goes to the loop's exception handler when it ends, and not when it is garbage collected."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(report_error)
    return task


async def run_every(period: float, act: Callable[[], None]) -> None:
    """Call `act` every `period` seconds, without drift: each call follows from the schedule, not from the end of the last one.

    Calls that were missed while the loop did not run are not repeated: there is one call, and a new schedule from then on.
    """
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due = max(due + period, loop.time())
        await asyncio.sleep(due - loop.time())
        act()


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    await asyncio.wait((task,))


async def done_or_set(task: asyncio.Future[Any], event: asyncio.Event, timeout: float | None = None) -> None:
    """Wait until the task is done or the event is set, for at most `timeout` seconds."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((task, waiting), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
