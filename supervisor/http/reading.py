"""Read the store for answers, on a connection and a thread of their own, so that the engine never waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from supervisor.errors import StoreUnavailable
from supervisor.stores.protocol import Store
from supervisor.stores.store_thread import StoreThread

Result = TypeVar("Result")

MAX_WAITING = 20
"""Calls that wait for the one that is under way; more are refused."""
TIMEOUT = 10.0  # seconds for which an answer waits for the store


class Reader(Protocol):
    async def read(self, call: Callable[[Store], Result]) -> Result:
        """Return what `call` returns for the store. Raises StoreError, and StoreUnavailable if it takes too long: then the call may
        be made all the same."""

    def close(self) -> None: ...


class StoreReader:
    """Reads the store on a StoreThread, which closes it unless it is `shared`. The end of the process does not wait for a call that
    hangs."""

    def __init__(self, opener: Callable[[], Store], loop: asyncio.AbstractEventLoop, *, shared: bool = False) -> None:
        self._thread = StoreThread(opener, "http-store", shared=shared)
        self._loop = loop
        self._waiting = 0

    async def read(self, call: Callable[[Store], Result]) -> Result:
        if self._waiting > MAX_WAITING:
            raise StoreUnavailable("too many requests read the store at this moment; ask again later")
        self._waiting += 1
        answer: asyncio.Future[Result] = self._loop.create_future()
        self._thread.submit(call).add_done_callback(partial(self._done, answer))
        return await _in_time(answer)

    def close(self) -> None:
        self._thread.close()

    def _done(self, answer: asyncio.Future[Result], done: Future[Result]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._ended, answer, done)

    def _ended(self, answer: asyncio.Future[Result], done: Future[Result]) -> None:
        self._waiting -= 1
        if answer.done():  # nobody waits any longer
            return
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
        else:
            answer.set_exception(error)
            answer.exception()  # else asyncio logs it if nobody waits any longer


async def _in_time(future: asyncio.Future[Result]) -> Result:
    await asyncio.wait((future,), timeout=TIMEOUT)
    if not future.done():
        raise StoreUnavailable(f"the store has not answered for {TIMEOUT:g}s")
    return future.result()
