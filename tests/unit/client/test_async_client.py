from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from supervisor import AsyncClient, handler
from supervisor.client import InvalidJob
from supervisor.client.client import Client

URL = "sqlite:///jobs.db"


@handler
def thumbnail(path: str) -> None: ...


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_call_is_that_of_the_client_awaited() -> None:
    async def calls() -> None:
        async with AsyncClient(URL, create=True) as jobs:
            one = await jobs.enqueue("mail", {"to": "me"}, priority=3)
            two = await jobs.options(delay="1h").enqueue(thumbnail, path="a")
            assert await jobs.enqueue_many([("mail", 1), ("mail", 2)]) == [3, 4]
            assert [(await jobs.job(id) or {})["state"] for id in (one, two)] == ["ready", "scheduled"]
            assert await jobs.cancel(two)
            assert not await jobs.cancel(two)
            assert await jobs.job(99) is None
            with pytest.raises(InvalidJob, match="priority"):
                await jobs.enqueue("mail", priority="high")  # type: ignore[call-overload]

    asyncio.run(calls())


def test_a_call_that_waits_for_the_store_does_not_stop_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(Client, "job", lambda _, number: free.wait(30) and {"id": number})

    async def calls() -> None:
        jobs = AsyncClient(URL, create=True)
        waiting = asyncio.create_task(jobs.job(1))
        await asyncio.sleep(0)  # the loop goes on while the thread waits
        free.set()
        assert await waiting == {"id": 1}
        await jobs.close()

    asyncio.run(calls())


def test_a_client_is_used_again_after_it_was_closed() -> None:
    async def calls() -> list[int]:
        jobs = AsyncClient(URL, create=True)
        first = await jobs.enqueue("mail")
        await jobs.close()
        second = await jobs.enqueue("mail")
        await jobs.close()
        return [first, second]

    assert asyncio.run(calls()) == [1, 2]


def test_a_forked_process_has_a_thread_of_its_own() -> None:
    jobs = AsyncClient(URL, create=True)
    assert asyncio.run(jobs.enqueue("mail")) == 1
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if asyncio.run(jobs.enqueue("mail")) == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asyncio.run(jobs.enqueue("mail")) == 3
    asyncio.run(jobs.close())


def test_the_calls_of_many_tasks_are_all_answered() -> None:
    async def calls() -> list[Any]:
        async with AsyncClient(URL, create=True) as jobs:
            return await asyncio.gather(*(jobs.enqueue("mail", number) for number in range(50)))

    assert sorted(asyncio.run(calls())) == list(range(1, 51))
