"""The supervisor's own tasks: an error in one of them is reported at once, so that the supervisor ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def start_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task whose error goes to the loop's exception handler when it ends, and not when it is garbage collected."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_report_error)
    return task


def _report_error(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        context = {"message": "a task of the supervisor failed", "exception": error}
        task.get_loop().call_exception_handler(context)


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
