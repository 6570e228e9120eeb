"""Run one coroutine on an event loop of its own, and end what it leaves behind, within a time: unlike asyncio.run, which waits for
tasks that can't be cancelled and for threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from supervisor.workers.child.error_report import HIDDEN

GRACE = 1.0  # seconds for each of: the coroutine after Ctrl-C, the tasks that it has left behind, their generators
LEFT = "what the handler has started goes on %gs after it was cancelled, and is left: %s"
MAX_NAMED = 3

HIDDEN.append(globals())


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of the coroutine. At Ctrl-C code that runs is interrupted, and a coroutine that waits is cancelled."""
    loop = asyncio.new_event_loop()
    executor = ThreadPoolExecutor()
    loop.set_default_executor(executor)
    asyncio.set_event_loop(loop)
    try:
        task = loop.create_task(coroutine)
        try:
            loop.run_until_complete(asyncio.wait((task,)))
        except (KeyboardInterrupt, SystemExit) as interrupt:
            if not task.done():
                raise _cancelled(loop, task, interrupt) from None
        return task.result()
    finally:
        try:
            _end_tasks(loop, task)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            asyncio.set_event_loop(None)
            loop.close()


def _cancelled(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], interrupt: KeyboardInterrupt | SystemExit
) -> BaseException:
    """Cancel the task; return the interrupt, with the place at which the task has waited."""
    task.cancel()
    _wait(loop, (task,))
    try:
        if task.done():
            task.result()
    except asyncio.CancelledError as error:
        return interrupt.with_traceback(error.__traceback__)
    except BaseException as error:
        interrupt.__context__ = error
    return interrupt


def _wait(loop: asyncio.AbstractEventLoop, tasks: Collection[asyncio.Task[Any]]) -> None:
    loop.run_until_complete(asyncio.wait(tasks, timeout=GRACE))


def _end_tasks(loop: asyncio.AbstractEventLoop, handler: asyncio.Task[Any]) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _wait(loop, left)
    generators = loop.create_task(loop.shutdown_asyncgens())
    _wait(loop, (generators,))
    going_on: list[Any] = [task for task in (*left, generators) if not task.done()]
    for task in going_on:
        task._log_destroy_pending = False  # the line below names it
    special = {handler: "the handler itself", generators: "async generators"}
    names = [special.get(task) or f"task {getattr(task.get_coro(), '__qualname__', task)}" for task in going_on]
    if names:
        more = ["…"] if len(names) > MAX_NAMED else []
        logging.getLogger(__name__).warning(LEFT, GRACE, ", ".join([*names[:MAX_NAMED], *more]))
