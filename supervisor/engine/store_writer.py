"""The one thread that writes to the store. Whatever is queued when it turns to the store shares one commit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from supervisor.errors import StoreContended, StoreUnavailable
from supervisor.events import Bus, StoreAvailableAgain, StoreBecameUnavailable
from supervisor.stores.protocol import Store

Result = TypeVar("Result")
RETRY_DELAYS = (0.02, 1.0)
SMALL = 0.002
"""Seconds: a commit that took less was of a few jobs. A program that enqueues one by one would have to wait for one like it
after each of its own; so there is a rest, in which it gets on, and more comes together for the next."""
REST = 0.002


class Abandoned(Exception):
    """The supervisor ended before the store came back; nothing of this work was done."""


class Work(Generic[Result]):
    __slots__ = ("call", "error", "future", "result")

    def __init__(self, call: Callable[[Store], Result], future: asyncio.Future[Result]) -> None:
        self.call = call
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None

    def deliver(self) -> None:
        if self.future.cancelled():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Executor(Protocol):
    """What does the writing: a thread, or a simulation of one."""

    def start(self) -> None: ...
    def is_alive(self) -> bool: ...


class Writer:
    """`submit` from the loop; answers come back to the loop in the order of the submissions.

    Work that finds the store away is kept and tried again until it is back or the writer is closed: no answer is ever
    dropped, so a call may be made more than once but takes effect once. Work that meets a lock is tried again at once, before
    anybody is told that the store is away. Work that raises anything else fails alone.
    """

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        bus: Bus,
        executor: Callable[[Writer], Executor] | None = None,
    ) -> None:
        self._store = store
        self._loop = loop
        self._bus = bus
        self._queue: SimpleQueue[list[Work[Any]] | None] = SimpleQueue()
        self._gathered: list[Work[Any]] = []
        self._give_up = threading.Event()
        self._unavailable_since: float | None = None
        self._closed = False
        self._executor = executor(self) if executor is not None else _thread(self)
        self._executor.start()

    @property
    def unavailable(self) -> bool:
        return self._unavailable_since is not None

    def submit(self, call: Callable[[Store], Result]) -> asyncio.Future[Result]:
        """Handed over at the end of this turn of the loop, together with whatever else is submitted in it."""
        future: asyncio.Future[Result] = self._loop.create_future()
        if self._closed:
            future.set_exception(Abandoned("the store is closed"))
            future.exception()  # it is no fault if nobody asks
            return future
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(Work(call, future))
        return future

    def _hand_over(self) -> None:
        works, self._gathered = self._gathered, []
        if works:
            self._queue.put(works)

    async def close(self, timeout: float) -> bool:
        """Finish what was submitted, for at most `patience` seconds; False if the store stayed away that long."""
        self._hand_over()
        self._closed = True
        self._queue.put(None)
        deadline = self._loop.time() + timeout
        try:
            while self._executor.is_alive() and self._loop.time() < deadline:
                await asyncio.sleep(0.002)
            return not self._executor.is_alive()
        finally:
            self._give_up.set()

    # on the thread

    def run(self) -> None:
        while (works := self.next()) is not None:
            began = time.monotonic()
            for seconds in self.commit(works):
                self._give_up.wait(seconds)
            self.deliver(works)
            if time.monotonic() - began < SMALL:
                time.sleep(REST)

    @property
    def has_next(self) -> bool:
        return not self._queue.empty()

    def deliver(self, works: list[Work[Any]]) -> None:
        self._tell(_deliver, works)

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        """On the loop, unless that has ended: then there is nobody left to tell."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def next(self) -> list[Work[Any]] | None:
        """Waits for work and gives all there is; None once it is closed and all was given."""
        first = self._queue.get()
        if first is None:
            return None
        works = first
        try:
            while (more := self._queue.get_nowait()) is not None:
                works = works + more
            self._queue.put(None)
        except Empty:
            pass
        return works

    def commit(self, works: list[Work[Any]]) -> Iterator[float]:
        """Each work has its result or its error in the end. Gives seconds to wait before it tries an absent store again."""
        delay, most = RETRY_DELAYS
        met_a_lock = False
        while True:
            try:
                with self._store.transaction(single=len(works) == 1):
                    for work in works:
                        work.result = work.call(self._store)
                self._tell_back()
                return
            except StoreUnavailable as error:
                if isinstance(error, StoreContended) and not met_a_lock:
                    met_a_lock = True
                    continue
                unavailable = error
            except Exception as error:
                if len(works) == 1:
                    works[0].error = error
                    return
                for work in works:
                    yield from self.commit([work])
                return
            self._tell_lost(unavailable)
            yield delay
            if self._give_up.is_set():
                for work in works:
                    work.error = Abandoned(str(unavailable))
                return
            delay = min(most, delay * 2)

    def _tell_lost(self, error: StoreUnavailable) -> None:
        if self._unavailable_since is None:
            self._unavailable_since = self._loop.time()
            self._tell(self._bus.emit, StoreBecameUnavailable(str(error)))

    def _tell_back(self) -> None:
        since = self._unavailable_since
        if since is not None:
            self._unavailable_since = None
            self._tell(self._bus.emit, StoreAvailableAgain(self._loop.time() - since))


def _thread(writer: Writer) -> threading.Thread:
    return threading.Thread(target=writer.run, name="store-writer", daemon=True)


def _deliver(works: list[Work[Any]]) -> None:
    for work in works:
        work.deliver()


def ignore_abandoned(future: asyncio.Future[Any]) -> None:
    """A callback for work whose answer nobody waits for."""
    error = future.exception()
    if error is not None and not isinstance(error, Abandoned):
        future.get_loop().call_exception_handler({"message": "the store refused", "exception": error})
