"""The one thread that writes to the store. All work that is queued when it begins a commit shares that commit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from supervisor.errors import StoreContended, StoreReplaced, StoreUnavailable
from supervisor.events import Bus, StoreAvailableAgain, StoreBecameUnavailable, StoreLost
from supervisor.retry import GrowingDelay
from supervisor.stores.protocol import Store

Result = TypeVar("Result")
FIRST_RETRY, MAX_RETRY = 0.02, 1.0  # seconds until an unavailable store is tried again


class WriterPauses(NamedTuple):
    """After a commit that took less than `small_commit` seconds the writer pauses for `pause` seconds. Such a commit was of a few
    jobs. A program that enqueues one by one would have to wait for one like it after each of its own commits; in the pause it
    goes on, and more work gathers for the next commit."""

    small_commit: float = 0.002
    pause: float = 0.002


USUAL_PAUSES = WriterPauses()


class Abandoned(Exception):
    """The supervisor ended before the store was available again; nothing of this work was done."""


@dataclass(slots=True, eq=False)
class Work(Generic[Result]):
    call: Callable[[Store], Result]
    future: asyncio.Future[Result]
    result: Any = None
    error: Exception | None = None

    def deliver(self) -> None:
        if self.future.cancelled():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Executor(Protocol):
    """Runs the writer: a thread, or a simulation of one."""

    def start(self) -> None: ...
    def is_alive(self) -> bool: ...


class Writer:
    """Calls the store on its own thread. `submit` is called on the loop, and answers come to the loop in the order of submission.

    Work that finds the store unavailable is tried again until it is available or the writer is closed. No answer is ever dropped,
    so a call may be made more than once, and takes effect once. Work that meets a lock is tried again at once, before the store
    is reported as unavailable. Work that raises anything else fails alone.
    """

    def __init__(
        self, store: Store, loop: asyncio.AbstractEventLoop, bus: Bus,
        executor: Callable[[Writer], Executor] | None = None, pauses: WriterPauses = USUAL_PAUSES,
    ) -> None:  # fmt: skip
        self.outages = 0
        """How often the store has become available again."""
        self._store = store
        self._loop = loop
        self._bus = bus
        self._pauses = pauses
        self._queue: SimpleQueue[list[Work[Any]] | None] = SimpleQueue()
        self._gathered: list[Work[Any]] = []
        self._give_up = threading.Event()
        self._unavailable_since: float | None = None
        self._lost = False
        self._closed = False
        thread = threading.Thread(target=self.run, name="store-writer", daemon=True)
        self._executor = executor(self) if executor is not None else thread
        self._executor.start()

    @property
    def unavailable(self) -> bool:
        return self._unavailable_since is not None

    def submit(self, call: Callable[[Store], Result]) -> asyncio.Future[Result]:
        """Queue the call at the end of this iteration of the loop, together with the others that are submitted in it."""
        future: asyncio.Future[Result] = self._loop.create_future()
        if self._closed:
            future.set_exception(Abandoned("the store is closed"))
            future.exception()  # else asyncio logs it if nobody awaits the future
            return future
        if not self._gathered:
            self._loop.call_soon(self._queue_gathered)
        self._gathered.append(Work(call, future))
        return future

    def _queue_gathered(self) -> None:
        works, self._gathered = self._gathered, []
        if works:
            self._queue.put(works)

    async def close(self, timeout: float) -> bool:
        """Finish what was submitted, for at most `timeout` seconds. Return False if the store was unavailable for so long."""
        self._queue_gathered()
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
            if time.monotonic() - began < self._pauses.small_commit:
                time.sleep(self._pauses.pause)

    @property
    def has_next(self) -> bool:
        return not self._queue.empty()

    def deliver(self, works: list[Work[Any]]) -> None:
        self._call_on_loop(_deliver, works)

    def _call_on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Does nothing if the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def next(self) -> list[Work[Any]] | None:
        """Wait for work, and return all there is; None once the writer is closed and all work has been returned."""
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
        """Give each work its result or its error. Yields seconds to wait before an unavailable store is tried again."""
        delay = GrowingDelay(FIRST_RETRY, MAX_RETRY)
        met_a_lock = False
        while True:
            try:
                with self._store.transaction(single=len(works) == 1):
                    for work in works:
                        work.result = work.call(self._store)
                self._note_available()
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
            self._note_unavailable(unavailable)
            yield delay.next()
            if self._give_up.is_set():
                for work in works:
                    work.error = Abandoned(str(unavailable))
                return

    def _note_unavailable(self, error: StoreUnavailable) -> None:
        if isinstance(error, StoreReplaced) and not self._lost:
            self._lost = True
            self._call_on_loop(self._bus.emit, StoreLost(str(error)))
        if self._unavailable_since is None:
            self._unavailable_since = self._loop.time()
            if not self._lost:
                self._call_on_loop(self._bus.emit, StoreBecameUnavailable(str(error)))

    def _note_available(self) -> None:
        since = self._unavailable_since
        if since is not None:
            self._unavailable_since = None
            self.outages += 1
            self._call_on_loop(self._bus.emit, StoreAvailableAgain(self._loop.time() - since))


def _deliver(works: list[Work[Any]]) -> None:
    for work in works:
        work.deliver()
