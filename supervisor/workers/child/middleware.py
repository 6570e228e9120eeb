"""The plugins' wrappers around each job: hook `supervisor_run`.

This module calls them itself, since a call by pluggy takes several times as long as a small job. It keeps pluggy's rules: the
plugin registered last is outermost, and the next wrapper gets what a wrapper returns or raises after its `yield`. An async wrapper
can't return anything, so the result stays as it is; it wraps async handlers only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable
from time import perf_counter_ns
from typing import Any, NoReturn

from supervisor.jobs import Job
from supervisor.plugins.validation import is_async_wrapper, location

Run = Callable[[Job], Any]
Steps = Generator[None, Any, Any]
AsyncSteps = AsyncGenerator[None, Any]
Wrapper = Callable[..., Any]
"""A function that returns Steps, or AsyncSteps if it is an async wrapper."""

_ENDED: Any = object()
_STOPS = (StopIteration, StopAsyncIteration)


class Middleware:
    """Runs a handler's function within those of the `wrappers` that are not async, the first innermost.

    `took` is the function's own time in nanoseconds, 0 if it was not called. If that is too short for side effects, side effects
    of the wrappers may stay until after a later job.
    """

    def __init__(self, wrappers: Iterable[Wrapper]) -> None:
        self.took = 0
        self._function: Run
        self._outermost: Run = self._timed
        for wrapper in wrappers:
            if not is_async_wrapper(wrapper):
                self._outermost = _wrapped(wrapper, self._outermost)

    def run(self, job: Job, function: Run) -> Any:
        self._function, self.took = function, 0
        return self._outermost(job)

    def _timed(self, job: Job) -> Any:
        start = perf_counter_ns()
        try:
            return self._function(job)
        finally:
            self.took += perf_counter_ns() - start


def _wrapped(wrapper: Wrapper, inner: Run) -> Run:
    def run(job: Job) -> Any:
        steps = _begin(wrapper, job)
        try:
            result = inner(job)
        except BaseException as error:
            return _raise_into(steps, wrapper, error)
        return _return_into(steps, wrapper, result)

    return run


AsyncRun = Callable[[Job, Run], Coroutine[Any, Any, Any]]


def async_middleware(wrappers: Iterable[Wrapper]) -> AsyncRun:
    """Return a function that awaits what an async handler's function returns, within `wrappers`, the first innermost."""

    def call(job: Job, function: Run) -> Any:
        return function(job)

    run: AsyncRun = call
    for wrapper in wrappers:
        run = (_within_async if is_async_wrapper(wrapper) else _wrapped_async)(wrapper, run)
    return run


def _wrapped_async(wrapper: Wrapper, inner: AsyncRun) -> AsyncRun:
    async def run(job: Job, function: Run) -> Any:
        steps = _begin(wrapper, job)
        try:
            result = await inner(job, function)
        except BaseException as error:
            return _raise_into(steps, wrapper, error)
        return _return_into(steps, wrapper, result)

    return run


def _within_async(wrapper: Wrapper, inner: AsyncRun) -> AsyncRun:
    async def run(job: Job, function: Run) -> Any:
        steps: AsyncSteps = wrapper(job)
        if await anext(steps, _ENDED) is _ENDED:
            _refuse(wrapper, "did not yield")
        try:
            result = await inner(job, function)
        except GeneratorExit:  # nothing can be awaited any more
            raise
        except BaseException as error:
            if await _ends_after(steps.athrow(error), error):
                return None
        else:
            if await _ends_after(steps.asend(result)):
                return result
        await steps.aclose()
        _refuse(wrapper, "yielded more than once")

    return run


async def _ends_after(step: Awaitable[None], thrown: BaseException | None = None) -> bool:
    """Return whether the wrapper returns at this step, with which `thrown` is raised in it."""
    try:
        await step
    except StopAsyncIteration:
        return True
    except RuntimeError as raised:
        if isinstance(thrown, _STOPS) and raised.__cause__ is thrown:  # an async generator makes this one of it
            raise thrown from None
        raise
    return False


def _begin(wrapper: Wrapper, job: Job) -> Steps:
    steps: Steps = wrapper(job)
    if next(steps, _ENDED) is _ENDED:
        _refuse(wrapper, "did not yield")
    return steps


def _return_into(steps: Steps, wrapper: Wrapper, result: Any) -> Any:
    """Let the wrapper go on after its yield; return what it returns."""
    try:
        steps.send(result)
    except StopIteration as end:
        return end.value
    steps.close()
    return _refuse(wrapper, "yielded more than once")


def _raise_into(steps: Steps, wrapper: Wrapper, error: BaseException) -> Any:
    """Raise the error in the wrapper at its yield; return what it returns."""
    try:
        steps.throw(error)
    except StopIteration as end:
        return end.value
    except RuntimeError as raised:
        if isinstance(error, StopIteration) and raised.__cause__ is error:  # a generator makes this one of it
            raise error from None
        raise
    steps.close()
    return _refuse(wrapper, "yielded more than once")


def _refuse(wrapper: Wrapper, mistake: str) -> NoReturn:
    file, line = location(wrapper)
    raise RuntimeError(f"{file}:{line}: hook supervisor_run: a wrapper must yield once; this one {mistake}")
