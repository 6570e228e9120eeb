"""The threads of `asyncio.to_thread`: a thread can't be cancelled, so it may go on after its job."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from supervisor.jobs import Job
from supervisor.workers.child.job_context import CURRENT

LEFT = (
    "has failed, but calls that it has made in threads (asyncio.to_thread) go on, until they return or the worker exits: {}; "
    "give them a time limit of their own"
)
MAX_NAMED = 3
MAX_LEFT = 1000

Result = TypeVar("Result")


class JobThreads(ThreadPoolExecutor):
    """An executor that knows which job has called each function. For each thread that its job has left behind it may start one more."""

    def __init__(self, max_workers: int) -> None:
        super().__init__(max_workers)
        self._calls: dict[Future[Any], tuple[Job, Callable[..., Any]]] = {}
        self._left: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        future = super().submit(fn, *args, **kwargs)
        job = CURRENT.get()
        if job is not None:
            self._calls[future] = job, _called(fn)
            future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:
        self._calls.pop(future, None)
        if future in self._left:
            self._left.remove(future)
            self._max_workers -= 1

    def left_by(self, job: Job) -> str | None:
        """Return a warning about the calls of the job, which has failed, that go on."""
        mine = [(future, function) for future, (owner, function) in [*self._calls.items()] if owner is job]
        running = [(future, function) for future, function in mine if future.running()]
        for future, _ in running[: MAX_LEFT - len(self._left)]:
            self._left.add(future)
            self._max_workers += 1
            if future.done():  # meanwhile
                self._ended(future)
        names = [getattr(function, "__qualname__", type(function).__name__) for _, function in running]
        more = ["…"] if len(names) > MAX_NAMED else []
        return LEFT.format(", ".join([*names[:MAX_NAMED], *more])) if names else None


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of the user inside the one that asyncio.to_thread makes."""
    while isinstance(function, partial):
        in_context = isinstance(getattr(function.func, "__self__", None), Context)
        function = function.args[0] if in_context and function.args else function.func
    return function
