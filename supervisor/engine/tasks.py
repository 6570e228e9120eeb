"""The asyncio tasks of the engine, and the errors of work that nobody awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from supervisor.engine.store_writer import NotDone

Work = Coroutine[Any, Any, None]


def report_error(ended: asyncio.Future[Any]) -> None:
    """Report an error of work that nobody awaits to the loop's exception handler, which ends the supervisor. NotDone has been
    reported."""
    error = None if ended.cancelled() else ended.exception()
    if error is not None and not isinstance(error, NotDone):
        ended.get_loop().call_exception_handler({"message": "a part of the supervisor failed", "exception": error})


def drop_error(ended: asyncio.Future[Any]) -> None:
    """Retrieve an error that nobody awaits: otherwise asyncio reports it to the loop's handler, which ends the supervisor."""
    if not ended.cancelled():
        ended.exception()


class BackgroundTasks:
    """The tasks that run beside the engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order of their start

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Work) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        task.add_done_callback(report_error)
        return task

    def cancel(self) -> None:
        for task in [*self._tasks]:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)


class SingleTask:
    """A kind of work that runs at most once at a time: while the store is slow, calls to it must not pile up."""

    def __init__(self, tasks: BackgroundTasks, work: Callable[[], Work]) -> None:
        self._tasks = tasks
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._tasks.start(self._work())
