"""Read the store for answers, on a connection and a thread of their own, so that the engine never waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from supervisor.engine.store_writer import Purpose, Writer
from supervisor.errors import StoreError, StoreUnavailable
from supervisor.stores.protocol import Store
from supervisor.threads import started_executor

Result = TypeVar("Result")

MAX_WAITING = 20
"""Calls that wait for the one that is under way; more are refused."""
TIMEOUT = 10.0  # seconds for which an answer waits for the store


class Reader(Protocol):
    async def read(self, call: Callable[[Store], Result]) -> Result:
        """Return what `call` returns for the store. Raises StoreError, and StoreUnavailable if it takes too long."""

    def close(self) -> None: ...


class StoreReader:
    """Opens the store when it is first read, and again after an error."""

    def __init__(self, opener: Callable[[], Store]) -> None:
        self._opener = opener
        self._opened: Store | None = None
        self._executor = started_executor(1)
        self._waiting = 0

    async def read(self, call: Callable[[Store], Result]) -> Result:
        if self._waiting >= MAX_WAITING:
            raise StoreUnavailable("too many requests read the store at this moment; ask again later")
        self._waiting += 1
        work = asyncio.get_running_loop().run_in_executor(self._executor, self._call, call)
        work.add_done_callback(self._ended)
        done, _ = await asyncio.wait((work,), timeout=TIMEOUT)
        if not done:
            raise StoreUnavailable(f"the store has not answered for {TIMEOUT:g}s")
        return work.result()

    def close(self) -> None:
        self._executor.submit(self._disconnect)
        self._executor.shutdown(wait=False)

    def _ended(self, work: asyncio.Future[Result]) -> None:
        self._waiting -= 1
        if not work.cancelled():
            work.exception()  # else asyncio logs it if nobody waits any longer

    # on the thread

    def _call(self, call: Callable[[Store], Result]) -> Result:
        if self._opened is None:
            self._opened = self._opener()
        try:
            return call(self._opened)
        except StoreError:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        store, self._opened = self._opened, None
        if store is not None:
            store.close()


class WriterReader:
    """Reads a store that has one connection only, such as the one in memory, through the engine's writer."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def read(self, call: Callable[[Store], Result]) -> Result:
        work = self._writer.submit(call, Purpose.READ)
        await asyncio.wait((work,), timeout=TIMEOUT)
        if not work.done():
            raise StoreUnavailable(f"the store has not answered for {TIMEOUT:g}s")
        return work.result()

    def close(self) -> None: ...
