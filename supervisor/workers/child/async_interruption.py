"""Interrupt the handler of a task: cancel the task, so that JobTimeout or JobCancelled is raised at its await.

What is raised is a CancelledError as well, so that task groups and timeouts inside the handler end as they do when it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import replace
from types import coroutine
from typing import Any

from supervisor.handlers import Handler, JobCancelled, JobTimeout
from supervisor.jobs import Job
from supervisor.workers.child.error_report import HIDDEN
from supervisor.workers.child.interruption import CANCELLED, interruptions, timeout_text

_Run = Callable[[Job], Coroutine[Any, Any, Any]]


class _TaskTimeout(JobTimeout, asyncio.CancelledError):
    pass


class _TaskCancelled(JobCancelled, asyncio.CancelledError):
    pass


for _kind, _public in (
    (_TaskTimeout, JobTimeout),
    (_TaskCancelled, JobCancelled),
):  # shown by the names that users catch
    _kind.__module__, _kind.__name__, _kind.__qualname__ = _public.__module__, _public.__name__, _public.__qualname__

HIDDEN.append(globals())


class _Interruption:
    """The exception that is to be raised in the handler of one task, if any."""

    __slots__ = ("_pending", "_raised", "_task")

    def __init__(self) -> None:
        self._task: Any = asyncio.current_task()
        self._pending: BaseException | None = None
        self._raised: BaseException | None = None

    def request(self, exception: BaseException) -> None:
        self._pending = exception
        self._task.cancel()

    def in_place_of(self, error: BaseException) -> BaseException:
        """Return the exception to raise in the handler at an await that has raised this one."""
        if self._pending is None or not isinstance(error, asyncio.CancelledError):
            return error
        self._raised, self._pending = self._pending, None
        self._task.uncancel()
        return self._raised

    def alone_in(self, group: BaseExceptionGroup[BaseException]) -> BaseException | None:
        """Return the exception that was raised in the handler, if a task group has put it into this group, and nothing else."""
        raised = self._raised
        return raised if group.split(lambda each: each is raised)[1] is None else None


class AsyncInterrupter:
    """Interrupts the handlers of one async worker."""

    def __init__(self, handlers: Mapping[str, Handler], settings: Mapping[str, Mapping[str, float | None]]) -> None:
        found = {name: interruptions(settings, it) for name, it in handlers.items()}
        self.handlers = {
            name: replace(it, function=self._interruptible(it.function, found[name].soft_timeout))
            if any(found[name])
            else it
            for name, it in handlers.items()
        }
        """The handlers, with the functions of those replaced that have one of the two settings. The tasks of others are cancelled."""
        self._running: dict[Job, _Interruption] = {}

    def cancel(self, job: Job) -> bool:
        """Raise JobCancelled in the handler; return False if its task is to be cancelled instead."""
        job._cancelled = True
        interruption = self._running.get(job)
        if interruption is not None:
            interruption.request(_TaskCancelled(CANCELLED))
        return interruption is not None

    def _interruptible(self, function: _Run, soft_timeout: float | None) -> _Run:
        running = self._running_jobs

        async def run(job: Job) -> Any:
            interruption = running()[job] = _Interruption()
            try:
                if soft_timeout is None:
                    return await _driven(function(job), interruption)
                due = _TaskTimeout(timeout_text(soft_timeout))
                timer = asyncio.get_running_loop().call_later(soft_timeout, interruption.request, due)
                try:
                    return await _driven(function(job), interruption)
                finally:
                    timer.cancel()
            except BaseExceptionGroup as group:
                if (alone := interruption.alone_in(group)) is not None:
                    raise alone from None
                raise
            finally:
                del running()[job]

        return run

    def _running_jobs(self) -> dict[Job, _Interruption]:
        return self._running


@coroutine
def _driven(inner: Coroutine[Any, Any, Any], interruption: _Interruption) -> Generator[Any, Any, Any]:
    """Await the handler's coroutine; raise in it what is to be raised in place of a CancelledError."""
    steps = inner if hasattr(inner, "send") else inner.__await__()
    step, argument = steps.send, None
    while True:
        try:
            awaited = step(argument)
        except StopIteration as end:
            return end.value
        try:
            argument = yield awaited
            step = steps.send
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            argument, step = interruption.in_place_of(error), steps.throw
