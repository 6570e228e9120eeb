"""Read the store for answers, on a connection and a thread of their own, so that the engine never waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.errors import StoreError, StoreUnavailable
from supervisor.stores.protocol import Store
from supervisor.threads import start_thread

Result = TypeVar("Result")

MAX_WAITING = 20
"""Calls that wait for the one that is under way; more are refused."""
TIMEOUT = 10.0  # seconds for which an answer waits for the store


class Reader(Protocol):
    async def read(self, call: Callable[[Store], Result]) -> Result:
        """Return what `call` returns for the store. Raises StoreError, and StoreUnavailable if it takes too long: then the call may
        be made all the same."""

    def close(self) -> None: ...


class _Work(NamedTuple):
    call: Callable[[Store], Any]
    future: asyncio.Future[Any]


class StoreReader:
    """Opens the store when it is first read, and again after an error. The end of the process does not wait for a call that hangs."""

    def __init__(self, opener: Callable[[], Store], loop: asyncio.AbstractEventLoop) -> None:
        self._opener = opener
        self._loop = loop
        self._opened: Store | None = None
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._waiting = 0
        start_thread(self._run, "http-store")

    async def read(self, call: Callable[[Store], Result]) -> Result:
        if self._waiting > MAX_WAITING:
            raise StoreUnavailable("too many requests read the store at this moment; ask again later")
        self._waiting += 1
        work = _Work(call, self._loop.create_future())
        self._queue.put(work)
        return await _in_time(work.future)

    def close(self) -> None:
        self._queue.put(None)

    def _ended(self, work: _Work, result: Any, error: Exception | None) -> None:
        self._waiting -= 1
        if work.future.done():  # nobody waits any longer
            return
        if error is None:
            work.future.set_result(result)
        else:
            work.future.set_exception(error)
            work.future.exception()  # else asyncio logs it if nobody waits any longer

    # on the thread

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            result, error = None, None
            try:
                result = work.call(self._store())
            except Exception as raised:
                error = raised
                if isinstance(raised, StoreError):
                    self._disconnect()
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._ended, work, result, error)
        self._disconnect()

    def _store(self) -> Store:
        if self._opened is None:
            self._opened = self._opener()
        return self._opened

    def _disconnect(self) -> None:
        store, self._opened = self._opened, None
        if store is not None:
            with suppress(StoreError):
                store.close()


class WriterReader:
    """Reads a store that has one connection only, such as the one in memory, through the engine's writer."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def read(self, call: Callable[[Store], Result]) -> Result:
        try:
            return await _in_time(self._writer.submit(call, Purpose.READ))
        except NotDone as error:
            raise StoreUnavailable(str(error)) from None

    def close(self) -> None: ...


async def _in_time(future: asyncio.Future[Result]) -> Result:
    await asyncio.wait((future,), timeout=TIMEOUT)
    if not future.done():
        raise StoreUnavailable(f"the store has not answered for {TIMEOUT:g}s")
    return future.result()
