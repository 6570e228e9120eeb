"""Async wrappers: async generator functions around async handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest

from supervisor.jobs import Job
from supervisor.workers.child.middleware import Middleware, async_middleware

JOB = Job(1, "x")
Steps = AsyncGenerator[None, Any]


async def gives(job: Job) -> str:
    await asyncio.sleep(0)
    return "given"


async def fails(job: Job) -> None:
    await asyncio.sleep(0)
    raise ValueError("wrong")


async def passes(job: Job) -> Steps:
    await asyncio.sleep(0)
    yield


async def swallows(job: Job) -> Steps:
    try:
        yield
    except Exception:
        await asyncio.sleep(0)


async def replaces(job: Job) -> Steps:
    try:
        yield
    except Exception as error:
        raise LookupError("instead") from error


async def raises_before(job: Job) -> Steps:
    raise PermissionError("before")
    yield


async def raises_after(job: Job) -> Steps:
    yield
    await asyncio.sleep(0)
    raise PermissionError("after")


async def yields_never(job: Job) -> Steps:
    if job is None:
        yield


async def yields_twice(job: Job) -> Steps:
    yield
    yield


async def holds_on(job: Job) -> Steps:
    try:
        yield
    except ValueError:
        yield


def sync(job: Job) -> Generator[None, Any, Any]:
    try:
        result = yield
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return [result, job.id]


def run(wrappers: list[Any], function: Callable[[Job], Any]) -> Any:
    return asyncio.run(async_middleware(wrappers)(JOB, function))


@pytest.mark.parametrize(
    ("wrappers", "function", "became"),
    [
        ([passes], gives, "given"),
        ([passes, sync], gives, ["given", 1]),
        ([sync, passes], gives, ["given", 1]),
        ([passes, swallows], fails, None),
        ([replaces, sync], fails, "LookupError: instead"),
        ([raises_before, sync], gives, "PermissionError: before"),
        ([passes, raises_after, sync], gives, "PermissionError: after"),
        ([passes, sync], fails, "ValueError: wrong"),
    ],
)
def test_an_async_wrapper_keeps_results_and_may_change_exceptions(
    wrappers: list[Any], function: Callable[[Job], Any], became: Any
) -> None:
    assert run(wrappers, function) == became


@pytest.mark.parametrize(
    ("wrapper", "function", "mistake"),
    [
        (yields_never, gives, "did not yield"),
        (yields_twice, gives, "yielded more than once"),
        (holds_on, fails, "yielded more than once"),
    ],
)
def test_one_that_does_not_yield_once_is_named(wrapper: Any, function: Callable[[Job], Any], mistake: str) -> None:
    with pytest.raises(RuntimeError, match=rf"test_async_middleware\.py:\d+: hook supervisor_run: .*{mistake}"):
        run([wrapper], function)


@pytest.mark.parametrize("error", [StopAsyncIteration("end"), StopIteration("end")])
def test_an_exception_that_no_generator_may_raise_stays_what_it_is(error: Exception) -> None:
    async def stops(job: Job) -> None:
        raise error

    caught: list[BaseException] = []

    async def sees(job: Job) -> Steps:
        try:
            yield
        except BaseException as seen:
            caught.append(seen)
            raise

    with pytest.raises(type(error) if isinstance(error, StopAsyncIteration) else RuntimeError):
        run([sees], stops)
    assert len(caught) == 1


def test_a_cancelled_handler_lets_its_wrapper_tidy_up() -> None:
    steps: list[str] = []

    async def tidies(job: Job) -> Steps:
        try:
            yield
        finally:
            await asyncio.sleep(0.01)
            steps.append("tidied")

    async def main() -> None:
        started = asyncio.Event()

        async def endless(job: Job) -> None:
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(async_middleware([tidies])(JOB, endless))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert steps == ["tidied"]

    asyncio.run(main())


def test_a_sync_handler_runs_without_async_wrappers() -> None:
    assert Middleware([yields_twice, sync, raises_before]).run(JOB, lambda job: "given") == ["given", 1]
