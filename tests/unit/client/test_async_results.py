"""The results of jobs, as the tasks of an event loop wait for them: one look for all, between which other calls are made."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from contextlib import aclosing

import pytest

from supervisor import AsyncClient, Client, JobFailed, JobNotFound
from supervisor.client import shared_looks
from supervisor.client.ended_jobs import Wait
from supervisor.client.shared_looks import Waiter
from supervisor.errors import StoreError, StoreUnavailable
from supervisor.stores.sqlite.store import SqliteStore


@pytest.fixture
def url(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Client(url, create=True):
        pass
    return url


@pytest.fixture
def calls(monkeypatch):
    """The numbers of calls of a store by name."""
    calls = Counter()
    init = SqliteStore.__init__

    def counted(self, *arguments, **options) -> None:
        init(self, *arguments, **options)
        for name in ("ended", "get_many"):
            setattr(self, name, counting(name, getattr(self, name)))

    def counting(name, method):
        def count(*arguments):
            calls[name] += 1
            return method(*arguments)

        return count

    monkeypatch.setattr(SqliteStore, "__init__", counted)
    return calls


def run(url, use, **options):
    async def main():
        async with AsyncClient(url, **options) as client:
            return await use(client)

    return asyncio.run(main())


async def waits_until(fact) -> None:
    async with asyncio.timeout(30):
        while not fact():
            await asyncio.sleep(0.001)


def test_results_and_failures_are_those_of_a_client(url):
    async def use(client):
        cancelled, waiting = await client.enqueue("a"), await client.enqueue("b")
        result = asyncio.create_task(client.result(cancelled))
        await client.cancel(cancelled)
        with pytest.raises(JobFailed, match="was cancelled"):
            await result
        with pytest.raises(JobNotFound):
            await client.result(77)
        with pytest.raises(TimeoutError, match="job 2 has not ended within 20ms"):
            await client.result(waiting, timeout="20ms")
        found = {}
        with pytest.raises(TimeoutError, match="1 of 3 jobs have not ended within 0ms: 2"):
            async for id, outcome in client.results([waiting, cancelled, 77], timeout=0):
                found[id] = type(outcome)
        assert found == {cancelled: JobFailed, 77: JobNotFound}
        with pytest.raises(TypeError, match="id: expected"):
            client.results(["a"])

    run(url, use)


def test_thousands_of_tasks_share_the_looks(url, calls):
    async def use(client):
        ids = await client.enqueue_many([("a", n) for n in range(2000)])
        results = [asyncio.create_task(client.result(id)) for id in ids]
        await waits_until(lambda: calls["ended"] >= 6)
        await client._run(lambda: client._client._ask(lambda store: store.cancel(ids)))
        errors = await asyncio.gather(*results, return_exceptions=True)
        assert {type(error) for error in errors} == {JobFailed} and [error.id for error in errors] == ids

    run(url, use)
    assert calls["ended"] < 50 and calls["get_many"] <= 12


def test_a_look_takes_along_the_tasks_whose_pause_is_half_over():
    """So that tasks that began at different times soon share their looks."""
    waiter = Waiter(Wait([1], None, 30.0, 0.0), 0.0)
    assert waiter.is_due(0.0)
    waiter.previous, waiter.due = 10.0, 10.25
    assert [waiter.is_due(now) for now in (10.0, 10.1, 10.13, 10.25, 11.0)] == [False, False, True, True, True]
    waiter.error = StoreUnavailable("locked")
    assert not waiter.is_due(11.0)


def test_a_wait_blocks_neither_other_calls_nor_the_loop(url):
    async def use(client):
        id = await client.enqueue("a")
        result = asyncio.create_task(client.result(id))
        for _ in range(50):
            await client.enqueue("b")
        assert not result.done()
        assert await client.cancel(id)
        with pytest.raises(JobFailed):
            await result

    run(url, use)


def test_a_task_that_is_cancelled_is_forgotten_and_the_others_wait_on(url):
    async def use(client):
        first, second = await client.enqueue("a"), await client.enqueue("b")
        results = [asyncio.create_task(client.result(id)) for id in (first, first, second)]
        await waits_until(lambda: client._looks and len(client._looks._waiters) == 3)
        results[0].cancel()
        results[2].cancel()
        await asyncio.gather(results[0], results[2], return_exceptions=True)
        assert len(client._looks._waiters) == 1 and list(client._looks._by_id) == [first]
        await client.cancel(first)
        with pytest.raises(JobFailed):
            await results[1]
        assert not client._looks._waiters and not client._looks._by_id
        await waits_until(client._looks._task.done)

    run(url, use)


def test_a_loop_that_is_left_early_is_forgotten(url):
    async def use(client):
        ids = await client.enqueue_many([("a", None), ("b", None)])
        await client.cancel(ids[1])
        async with aclosing(client.results(ids)) as results:
            async for id, _ in results:
                assert id == ids[1]
                break
        assert not client._looks._waiters and not client._looks._by_id
        await waits_until(client._looks._task.done)

    run(url, use)


def test_one_client_serves_one_loop_after_another(url):
    client = AsyncClient(url)

    async def use():
        id = await client.enqueue("a")
        with pytest.raises(TimeoutError):
            await client.result(id, timeout=0)
        await client.cancel(id)
        with pytest.raises(JobFailed):
            await client.result(id)

    asyncio.run(use())
    asyncio.run(use())
    asyncio.run(client.close())


def test_a_child_that_is_forked_waits_for_itself(url):
    client = AsyncClient(url)

    async def use():
        id = await client.enqueue("a")
        await client.cancel(id)
        with pytest.raises(JobFailed):
            await client.result(id)

    asyncio.run(use())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(use())
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(use())
    asyncio.run(client.close())


class Failing:
    """Makes the store raise `error` for each look while it is set."""

    def __init__(self, monkeypatch) -> None:
        self.error: Exception | None = None
        self.raised = 0
        ask = Client._ask_once

        def failing(client, until, question):
            if self.error is not None:
                self.raised += 1
                raise self.error
            return ask(client, until, question)

        monkeypatch.setattr(Client, "_ask_once", failing)


def test_a_store_that_is_unavailable_for_a_while_ends_no_wait(url, monkeypatch):
    failing = Failing(monkeypatch)

    async def use(client):
        id = await client.enqueue("a")
        result = asyncio.create_task(client.result(id))
        failing.error = StoreUnavailable("locked")
        await waits_until(lambda: failing.raised >= 3)
        with pytest.raises(TimeoutError, match="the store is unavailable: locked"):
            await client.result(id, timeout=0.05)
        failing.error = None
        await client.cancel(id)
        with pytest.raises(JobFailed):
            await result

    run(url, use)


@pytest.mark.parametrize("error", [StoreUnavailable("locked"), StoreError("refused"), ValueError("unforeseen")])
def test_a_store_that_fails_for_good_ends_every_wait(url, monkeypatch, error):
    failing = Failing(monkeypatch)

    async def use(client):
        results = [asyncio.create_task(client.result(id)) for id in (await client.enqueue("a"), 1)]
        failing.error = error
        assert await asyncio.gather(*results, return_exceptions=True) == [error, error]
        failing.error = None
        with pytest.raises(TimeoutError):
            await client.result(1, timeout=0)

    run(url, use, timeout=0.0)


def test_the_time_is_up_even_while_the_thread_hangs(url, monkeypatch):
    monkeypatch.setattr(shared_looks, "OVERTIME", 0.01)

    async def use(client):
        id, end = await client.enqueue("a"), threading.Event()
        hanging = asyncio.create_task(client._run(end.wait, 30.0))
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="job 1 has not ended within 10ms; the store has not answered"):
            await client.result(id, timeout=0.01)
        assert time.monotonic() - began < 10.0
        end.set()
        await hanging

    run(url, use)
