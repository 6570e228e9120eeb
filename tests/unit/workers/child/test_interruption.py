"""JobTimeout and JobCancelled are raised in the handler for which they are meant, or not at all."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from operator import methodcaller
from typing import Any

import pytest

from supervisor import Handler, Job, JobCancelled, JobTimeout
from supervisor.workers.child import interruption
from supervisor.workers.child.async_interruption import AsyncInterrupter
from supervisor.workers.child.error_report import report
from supervisor.workers.child.interruption import OF_ALL, Interrupter, Interruptions, interruptions
from supervisor.workers.child.record_handler import RecordHandler
from supervisor.workers.system.linux import CANCEL_SIGNAL, INTERRUPT_SIGNAL

NO_END = 3600.0


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (INTERRUPT_SIGNAL, CANCEL_SIGNAL)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in before.items():
        signal.signal(number, handler)


class Worker:
    """The handlers of one worker, and its thread that interrupts them. Each handler has its own options."""

    def __init__(self, *handlers: Handler) -> None:
        self.interrupter = Interrupter({each.name: each for each in handlers}, {})
        self._ended = False
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Worker:
        self.interrupter.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended:
            self.interrupter.wait(0.25)

    def run(self, name: str, job: Job | None = None) -> Any:
        return self.interrupter.handlers[name].function(job or Job(1, name))


def sleep(_job: Job) -> None:
    time.sleep(NO_END)


def spin(_job: Job) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("settings", "options", "expected"),
    [
        ({}, {}, (None, None)),
        ({OF_ALL: {"soft_timeout": 5.0, "cancel_grace": 1.0}}, {}, (5.0, 1.0)),
        ({OF_ALL: {"soft_timeout": 5.0}}, {"soft_timeout": "2s", "cancel_grace": 3}, (2.0, 3.0)),
        ({OF_ALL: {"soft_timeout": 5.0}}, {"soft_timeout": "none"}, (None, None)),
        ({OF_ALL: {"soft_timeout": 5.0}, "h": {"soft_timeout": None}}, {"soft_timeout": "2s"}, (None, None)),
        ({"h": {"soft_timeout": 1.0}}, {"soft_timeout": "2s"}, (1.0, None)),
    ],
)
def test_the_config_goes_before_the_decorator_and_this_before_what_is_for_all(
    settings: Any, options: Any, expected: tuple[float | None, float | None]
) -> None:
    assert interruptions(settings, Handler("h", sleep, **options)) == Interruptions(*expected)


def test_handlers_that_cannot_be_interrupted_are_called_as_they_are() -> None:
    plain = Handler("plain", sleep)
    assert Worker(plain).interrupter.handlers == {"plain": plain}
    assert not Worker(plain).interrupter.needed
    with_soft = Worker(plain, Handler("soft", sleep, soft_timeout=1))
    assert with_soft.interrupter.needed
    assert with_soft.interrupter.handlers["plain"] is plain


@pytest.mark.parametrize("function", [sleep, spin])
def test_a_soft_timeout_is_raised_in_a_call_that_waits_and_in_one_that_computes(
    function: Callable[[Job], None],
) -> None:
    handler = Handler("h", function, soft_timeout=0.02)
    with Worker(handler) as worker, pytest.raises(JobTimeout, match=r"its soft_timeout of 0\.02s") as raised:
        worker.run("h")
    kind, error = report(raised.value, handler, {})
    assert kind == "timeout"
    assert ", in _interrupt\n" not in error["traceback"]
    assert worker.interrupter._job is None


def test_a_soft_timeout_is_raised_once() -> None:
    raised = []

    def twice(_job: Job) -> str:
        try:
            time.sleep(NO_END)
        except JobTimeout as error:
            raised.append(error)
        time.sleep(0.1)
        return "ended"

    with Worker(Handler("h", twice, soft_timeout=0.01)) as worker:
        assert worker.run("h") == "ended"
    assert len(raised) == 1


def test_none_of_many_short_jobs_is_hit_by_the_exception_of_another() -> None:
    """Each job ends at about its deadline, and the next begins at once; the worker's own code between them is never interrupted."""
    running: list[Job] = []

    def until_deadline(job: Job) -> str:
        running.append(job)
        end = time.perf_counter() + job.payload
        while time.perf_counter() < end:
            pass
        return "ended"

    def innocent(_job: Job) -> str:
        return "ended"

    soft = 0.006
    interrupted = 0
    with Worker(
        Handler("long", until_deadline, soft_timeout=soft), Handler("short", innocent, soft_timeout=soft)
    ) as worker:
        switch = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for number in range(600):
                try:
                    worker.run("long", Job(number, "long", soft + (number % 20 - 10) * 2e-5))
                except JobTimeout:
                    interrupted += 1
                for _ in range(20):
                    assert worker.run("short") == "ended"
        finally:
            sys.setswitchinterval(switch)
    assert 0 < interrupted <= len(running) == 600


@pytest.mark.parametrize(("function", "raises"), [(lambda job: job.payload(), True), (methodcaller("payload"), False)])
def test_the_code_around_the_handler_is_not_interrupted(function: Any, raises: bool) -> None:
    """A handler without Python code has no frame: the signal comes in the frame of the worker's code that calls it."""
    job = Job(1, "h", partial(signal.raise_signal, INTERRUPT_SIGNAL))
    interrupter = Worker(Handler("h", function, soft_timeout=NO_END)).interrupter
    interrupter.start()
    interrupter._due = job, JobTimeout("due")
    with pytest.raises(JobTimeout) if raises else nullcontext():
        interrupter.handlers["h"].function(job)


def test_the_exception_of_one_job_is_not_raised_in_another() -> None:
    job = Job(2, "h", partial(signal.raise_signal, INTERRUPT_SIGNAL))
    interrupter = Worker(Handler("h", lambda job: job.payload(), soft_timeout=NO_END)).interrupter
    interrupter.start()
    interrupter._due = Job(1, "h"), JobTimeout("due")
    assert interrupter.handlers["h"].function(job) is None


def test_the_exception_waits_until_it_can_reach_the_handler() -> None:
    """One raised in `__del__` would be printed and lost; one in the worker's log handler would leave it half done."""
    worker = Worker(Handler("h", lambda job: job.payload(), soft_timeout=0.001))
    caught = []

    class Slow:
        def __del__(self) -> None:
            caught.append(frame_is_safe())

    def frame_is_safe() -> bool:
        return interruption._is_in_handler(sys._getframe())

    def handle() -> None:
        Slow()
        gc.collect()
        caught.append(frame_is_safe())

    worker.run("h", Job(1, "h", handle))
    assert caught == [False, True]
    assert not frame_is_safe()


def test_the_worker_s_log_handler_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    records = RecordHandler("info", 2, "token")
    monkeypatch.setattr(records, "_send", lambda *_: found.append(interruption._is_in_handler(sys._getframe())))

    def logs(_job: Job) -> None:
        records.report(logging.ERROR, "text")

    Worker(Handler("h", logs, soft_timeout=1)).run("h")
    assert found == [False]


def test_a_cancel_reaches_the_running_job_and_is_seen_there() -> None:
    job = Job(1, "h")
    assert not job.cancelled
    with Worker(Handler("h", sleep, cancel_grace=1)) as worker:
        signal.pthread_kill(worker._thread.ident or 0, CANCEL_SIGNAL)
        with pytest.raises(JobCancelled):
            worker.run("h", job)
    assert job.cancelled


def test_a_job_that_has_replaced_the_signal_handler_does_not_protect_the_next_one() -> None:
    def replaces(_job: Job) -> None:
        signal.signal(INTERRUPT_SIGNAL, lambda *_: None)

    handlers = Handler("replaces", replaces, soft_timeout=NO_END), Handler("h", spin, soft_timeout=0.01)
    with Worker(*handlers) as worker:
        worker.run("replaces")
        with pytest.raises(JobTimeout):
            worker.run("h")


# --- async handlers


def run_async(function: Any, job: Job | None = None, **options: Any) -> Any:
    interrupter = AsyncInterrupter({"h": Handler("h", function, **options)}, {})
    job = job or Job(1, "h")

    async def main() -> Any:
        task = asyncio.ensure_future(interrupter.handlers["h"].function(job))
        if job.payload == "cancel":
            await asyncio.sleep(0.01)
            assert interrupter.cancel(job)
        return await task

    result = asyncio.run(main())
    assert not interrupter._running
    return result


def test_a_soft_timeout_is_raised_at_the_await_of_an_async_handler() -> None:
    async def endless(_job: Job) -> None:
        await asyncio.sleep(NO_END)

    with pytest.raises(JobTimeout) as raised:
        run_async(endless, soft_timeout=0.01)
    kind, error = report(raised.value, Handler("h", endless), globals())
    assert (kind, error["type"]) == ("timeout", "supervisor.handlers.JobTimeout")


def test_an_async_handler_that_catches_its_soft_timeout_goes_on() -> None:
    async def tidies(_job: Job) -> str:
        try:
            await asyncio.sleep(NO_END)
        except JobTimeout:
            async with asyncio.timeout(NO_END), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
        task: Any = asyncio.current_task()
        return f"{task.cancelling()} cancels left"

    assert run_async(tidies, soft_timeout=0.01) == "0 cancels left"


@pytest.mark.parametrize("payload", ["", "body"])
def test_the_tasks_of_an_async_handler_end_with_its_soft_timeout(payload: str) -> None:
    ended = []

    async def child() -> None:
        try:
            await asyncio.sleep(NO_END)
        finally:
            ended.append("child")

    async def groups(job: Job) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                if job.payload:
                    await asyncio.sleep(NO_END)
        finally:
            ended.append("handler")

    with pytest.raises(JobTimeout):  # from the group's own wait, or from the body in a group of exceptions
        run_async(groups, Job(1, "h", payload), soft_timeout=0.01)
    assert ended == ["child", "handler"]


def test_other_cancels_inside_an_async_handler_stay_what_they_are() -> None:
    async def limits(_job: Job) -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(NO_END)
        except TimeoutError:
            pass
        task = asyncio.ensure_future(asyncio.sleep(NO_END))
        task.cancel()
        try:
            await task
        except asyncio.CancelledError as error:
            return type(error).__name__
        return "not cancelled"

    assert run_async(limits, soft_timeout=NO_END) == "CancelledError"


def test_a_cancel_of_an_async_job_is_raised_at_its_await() -> None:
    job = Job(1, "h", "cancel")

    async def endless(job: Job) -> None:
        await asyncio.sleep(NO_END)

    with pytest.raises(JobCancelled):
        run_async(endless, job, cancel_grace=1)
    assert job.cancelled


def test_async_handlers_without_the_settings_are_called_as_they_are() -> None:
    plain = Handler("plain", sleep)
    interrupter = AsyncInterrupter({"plain": plain}, {})
    assert interrupter.handlers == {"plain": plain}
    job = Job(1, "plain")
    assert not interrupter.cancel(job)
    assert job.cancelled
