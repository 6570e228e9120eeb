"""Reading the store for HTTP, beside the engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.http import reading
from supervisor.http.reading import MAX_WAITING, StoreReader


class OneStore:
    """A store that is opened as often as it is asked for."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    def open(self) -> Any:
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1


async def failing(reader: StoreReader, error: Exception) -> None:
    def call(store: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        await reader.read(call)


def run(scene: Callable[[StoreReader, OneStore], Any]) -> OneStore:
    store = OneStore()

    async def main() -> None:
        reader = StoreReader(store.open, asyncio.get_running_loop())
        await scene(reader, store)
        reader.close()

    asyncio.run(main())
    return store


def test_the_store_is_opened_once_and_again_after_an_error_of_its_own() -> None:
    async def scene(reader: StoreReader, store: OneStore) -> None:
        assert await reader.read(lambda store: 1) == await reader.read(lambda store: 1) == 1
        await failing(reader, ValueError("a mistake in the call"))
        assert (store.opened, store.closed) == (1, 0)
        await failing(reader, StoreError("it is gone"))
        assert await reader.read(lambda store: 2) == 2
        assert (store.opened, store.closed) == (2, 1)

    run(scene)


def test_a_shared_store_is_not_closed_after_an_error_nor_at_the_end() -> None:
    store = OneStore()

    async def main() -> None:
        reader = StoreReader(store.open, asyncio.get_running_loop(), shared=True)
        await failing(reader, StoreError("not now"))
        assert await reader.read(lambda store: 2) == 2
        reader.close()

    asyncio.run(main())
    assert store.closed == 0


def test_more_calls_than_may_wait_are_refused_and_a_slow_one_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "TIMEOUT", 0.01)
    gate = threading.Event()

    async def scene(reader: StoreReader, store: OneStore) -> None:
        for _ in range(MAX_WAITING + 1):
            with pytest.raises(StoreUnavailable, match="has not answered for"):
                await reader.read(lambda store: gate.wait())
        with pytest.raises(StoreUnavailable, match="too many requests"):
            await reader.read(lambda store: 1)
        gate.set()
        monkeypatch.setattr(reading, "TIMEOUT", 10.0)
        while reader._waiting:
            await asyncio.sleep(0)
        assert await reader.read(lambda store: 1) == 1

    run(scene)


def test_the_end_of_the_process_does_not_wait_for_a_call_that_hangs() -> None:
    program = """
import asyncio, threading
from supervisor.http import reading
reading.TIMEOUT = 0.01
async def main():
    reader = reading.StoreReader(threading.Event().wait, asyncio.get_running_loop())
    try:
        await reader.read(lambda store: 1)
    except reading.StoreUnavailable:
        print("not answered")
    reader.close()
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "not answered\n"
