"""The threads of `asyncio.to_thread` that a job leaves behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from supervisor.jobs import Job
from supervisor.workers.child.job_context import CURRENT
from supervisor.workers.child.job_threads import JobThreads


@pytest.fixture
def threads() -> Iterator[JobThreads]:
    threads = JobThreads(1)
    yield threads
    threads.shutdown()


def test_a_thread_that_a_job_has_left_behind_is_named_and_takes_no_room_from_others(threads: JobThreads) -> None:
    first, second, go = Job(1, "first"), Job(2, "second"), threading.Event()

    async def call(job: Job, begun: threading.Event) -> str:
        CURRENT.set(job)

        def waits_for_go() -> str:
            begun.set()
            go.wait()
            return "went"

        return await asyncio.to_thread(waits_for_go)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(threads)
        begun = threading.Event(), threading.Event()
        task = asyncio.create_task(call(first, begun[0]))
        while not begun[0].is_set():
            await asyncio.sleep(0.001)
        assert threads.left_by(second) is None
        task.cancel()
        other = asyncio.create_task(call(second, begun[1]))
        left = threads.left_by(first) or ""
        assert left.startswith("has failed, but calls that it has made in threads") and "waits_for_go;" in left
        third = asyncio.create_task(asyncio.to_thread(str))
        while not begun[1].is_set():
            await asyncio.sleep(0.001)
        go.set()
        assert (await other, await third) == ("went", "")
        assert threads.left_by(second) is None

    asyncio.run(main())
    assert threads._max_workers == 1


def test_calls_that_have_not_begun_are_not_left_behind(threads: JobThreads) -> None:
    CURRENT.set(Job(1, "first"))
    go = threading.Event()
    running, waiting = threads.submit(go.wait), threads.submit(str)
    waiting.cancel()
    go.set()
    running.result()
    assert threads.left_by(Job(1, "first")) is None
