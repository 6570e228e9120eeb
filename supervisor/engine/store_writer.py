"""The one thread that writes to the store. All work that is queued when it begins a commit shares that commit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from supervisor.errors import StoreBroken, StoreContended, StoreError, StoreReplaced, StoreUnavailable, Unsupported
from supervisor.events import (
    Bus,
    StoreAvailableAgain,
    StoreBecameUnavailable,
    StoreCallFailed,
    StoreCallSucceeded,
    StoreLost,
)
from supervisor.retry import GrowingDelay
from supervisor.stores.protocol import Store
from supervisor.threads import start_thread

Result = TypeVar("Result")
FIRST_RETRY, MAX_RETRY = 0.02, 1.0  # seconds until an unavailable store is tried again


class WriterPauses(NamedTuple):
    """After a commit that took less than `small_commit` seconds, and so had few jobs, the writer pauses for `pause` seconds. Without
    the pause, a program that enqueues one by one would wait for such a commit after each of its own. In the pause the program
    continues, and more work gathers for the next commit."""

    small_commit: float = 0.002
    pause: float = 0.002


USUAL_PAUSES = WriterPauses()
NO_PAUSES = WriterPauses(small_commit=0.0)
"""For a store that no other program writes to."""


class Purpose(Enum):
    """The purpose of a call: its text in a report, and the effect while the call fails."""

    CLAIM = "claim jobs", "no job starts"
    SETTLE = "settle outcomes", "they are kept, and no further job is claimed"
    EXTEND = "extend leases", "another supervisor may run the jobs of this one again"
    REPORT = "write the progress and the log of jobs", "`jobs show` shows them as they were"
    RECOVER = "recover expired leases", "their jobs wait"
    FIND_EXPIRED = "find expired leases", "the jobs of supervisors that are gone wait"
    CHECK = "check leases", "jobs that are cancelled run on"
    ANNOUNCE = "write the row of this supervisor", "`status` shows it as it was"
    PRUNE = "delete jobs past their retention", "they stay in the store"
    REPAIR = "compare its counts with its rows", "wrong counts stay"
    CLAIM_DEAD_LETTERS = "claim dead letters", "they stay pending"
    ACCEPT = "mark dead letters as accepted", "they stay pending, and their sinks may get them again"
    POSTPONE = "postpone dead letters", "they are offered again after 90s"
    MAKE_DUE = "find jobs whose handler is served again", "they start when they are due"
    SHARES = "write the shares of groups", "groups share by the shares of before"
    PAUSED = "read which queues are paused", "jobs of queues that were paused just now may start"
    STATS = "read the rows of other supervisors", "jobs that wait here are not released to them"
    SINKS = "look for the sinks that dead letters wait for", "sinks that no supervisor has are not reported"
    COUNT = "count the jobs that are left", "a drain goes on, and after shutdown.grace it ends with exit code 1"
    SCHEDULE = "enqueue the jobs of schedules", "they come late"
    READ = "read jobs", "they are read again later"
    LEAVE = "remove the row of this supervisor", "it stays in `status`"

    def __init__(self, text: str, meanwhile: str) -> None:
        self.text, self.meanwhile = text, meanwhile


UNTIL_DONE = frozenset({Purpose.CLAIM, Purpose.SETTLE, Purpose.EXTEND})
"""Calls for these are repeated until they are done; any other call is made again when it is next due."""


class NotDone(Exception):
    """The store did not do this work. This has been reported, and the supervisor goes on."""


class Abandoned(NotDone):
    """The supervisor ended before the store was available again; nothing of this work was done."""


class CallFailed(NotDone):
    """The store is available, and this call to it failed."""


@dataclass(slots=True, eq=False)
class Work(Generic[Result]):
    call: Callable[[Store], Result]
    future: asyncio.Future[Result]
    purpose: Purpose = Purpose.READ
    did_work: Callable[[Result], bool] | None = None
    """If given: whether, by its result, the call had anything to do. If not, it shows nothing about the store."""
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
    """Runs the writer: a thread that has started, or a simulation of one."""

    def is_alive(self) -> bool: ...


class Writer:
    """Calls the store on its own thread. `submit` is called on the loop, and answers come to the loop in the order of submission,
    unless a call fails.

    There are three cases of a failed call. If the store is unavailable, all work waits until it is available or the writer is
    closed. If the answer to a commit was lost, the calls are made again: each takes effect once. Otherwise only this call has
    failed: it is reported, and raises CallFailed or, if its purpose is in UNTIL_DONE, is repeated without end; the other work
    goes on. As long as calls of a purpose fail, each of them comes last, in a commit of its own, and waits for a lock only
    briefly, so that no claim, settle or extend waits for it. A settle that the store refuses for good, Unsupported, and an error that
    is not a StoreError, are raised unchanged.
    """

    def __init__(
        self, store: Store, loop: asyncio.AbstractEventLoop, bus: Bus,
        executor: Callable[[Writer], Executor] | None = None, pauses: WriterPauses = USUAL_PAUSES,
        on_commit: Callable[[float], None] = lambda seconds: None,
    ) -> None:  # fmt: skip
        self.outages = 0
        """The number of times when the store was unavailable or refused calls, so that others may not have extended leases."""
        self.asked_at: float | None = None
        """Since when the store has been asked for the answer that is awaited now, by the loop's clock."""
        self.answered_at = loop.time()
        """When the store last did what it was asked for."""
        self.unavailable_because = ""
        self._store = store
        self._loop = loop
        self._bus = bus
        self._pauses = pauses
        self._on_commit = on_commit  # called on the thread, with the seconds that a commit took
        self._queue: SimpleQueue[list[Work[Any]] | None] = SimpleQueue()
        self._gathered: list[Work[Any]] = []
        self._give_up = threading.Event()
        self._unavailable_since: float | None = None
        self._lost = False
        self._closed = False
        self._reported: dict[Purpose, tuple[float, str]] = {}
        """Of each kind of call that fails: since when, and its last error."""
        self._executor = start_thread(self.run, "store-writer") if executor is None else executor(self)

    @property
    def unavailable(self) -> bool:
        return self._unavailable_since is not None

    def submit(
        self, call: Callable[[Store], Result], purpose: Purpose = Purpose.READ,
        did_work: Callable[[Result], bool] | None = None,
    ) -> asyncio.Future[Result]:  # fmt: skip
        """Queue the call at the end of this iteration of the loop, together with the others that are submitted in it."""
        future: asyncio.Future[Result] = self._loop.create_future()
        if self._closed:
            future.set_exception(Abandoned("the store is closed"))
            future.exception()  # else asyncio logs it if nobody awaits the future
            return future
        if not self._gathered:
            self._loop.call_soon(self._queue_gathered)
        self._gathered.append(Work(call, future, purpose, did_work))
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
        """Call it on the loop; do nothing if the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def next(self) -> list[Work[Any]] | None:
        """Wait for work, and return all there is; None once the writer is closed and all work has been returned."""
        first = self._queue.get()
        if first is None:
            return None
        return first + self._take_queued()

    def _take_queued(self) -> list[Work[Any]]:
        works: list[Work[Any]] = []
        with suppress(Empty):
            while (more := self._queue.get_nowait()) is not None:
                works += more
            self._queue.put(None)
        return works

    def commit(self, works: list[Work[Any]]) -> Iterator[float]:
        """Give each work its result or its error. Yield the seconds to wait before the next try. Work that ends before other work
        is delivered and removed from `works`; work that is submitted meanwhile is added."""
        failing = [work for work in works if self._is_failing(work)] if self._reported else []
        if failing:
            works[:] = [work for work in works if work not in failing]
        error = self._attempt(works) if works else None
        if isinstance(error, StoreContended) and all(work.purpose in UNTIL_DONE for work in works):
            error = self._attempt(works)  # the second time it waits for no rows
        if error is None:
            if not failing:
                return
            self.deliver([*works])
            works.clear()
        works += failing
        contended = isinstance(error, StoreContended)
        if len(works) > 1 or contended:
            error = None
        delay = GrowingDelay(FIRST_RETRY, MAX_RETRY)
        while True:
            unavailable = self._attempt_each(works, error, contended)
            if not works:
                return
            if unavailable is not None:
                self._note_unavailable(unavailable, self._loop.time())
            yield delay.next()
            if self._give_up.is_set():
                for work in works:
                    work.error = Abandoned(str(unavailable))
                return
            error = None
            works += self._take_queued()

    def _is_failing(self, work: Work[Any]) -> bool:
        return work.purpose in self._reported and work.purpose not in UNTIL_DONE

    def _attempt(self, works: list[Work[Any]], brief: bool = False) -> Exception | None:
        """Do all in one commit, or nothing; return the error."""
        self.asked_at = began = self._loop.time()
        try:
            with self._store.transaction(single=len(works) == 1, brief=brief):
                for work in works:
                    work.result = work.call(self._store)
        except Exception as error:
            self.asked_at = None
            if isinstance(error, StoreUnavailable) and self._loop.time() - began > MAX_RETRY:
                self._note_long_try(error, began)
            return error
        self.asked_at, self.answered_at = None, self._loop.time()
        self._on_commit(self.answered_at - began)
        self._note_available()
        if self._reported:
            done = {work.purpose for work in works if work.did_work is None or work.did_work(work.result)}
            for purpose in done & self._reported.keys():
                since, _ = self._reported.pop(purpose)
                self._call_on_loop(self._bus.emit, StoreCallSucceeded(purpose.text, self._loop.time() - since))
        return None

    def _attempt_each(
        self, works: list[Work[Any]], error: Exception | None, contended: bool
    ) -> StoreUnavailable | None:
        """Do each work in a commit of its own, those of UNTIL_DONE first. `error` is that of the only work, which was just tried, or
        None; `contended` is whether they met a lock together. Leave in `works` what has to be tried again. If the store is
        unavailable, this is all the rest, and the store's error is returned."""
        if (unavailable := self._unavailability()) is not None:
            return unavailable
        settles = True
        for work in sorted(works, key=lambda work: work.purpose not in UNTIL_DONE):
            if work.purpose is Purpose.CLAIM and not settles:
                continue  # otherwise jobs would run without end, although the store does not take their outcomes
            if error is None or isinstance(error, StoreUnavailable):
                brief = self._is_failing(work) or (contended and work.purpose not in UNTIL_DONE)
                error = self._attempt([work], brief)
            if isinstance(error, StoreUnavailable) and (unavailable := self._unavailability()) is not None:
                return unavailable
            if self._is_kept(work, error):
                settles = settles and work.purpose is not Purpose.SETTLE
            else:
                works.remove(work)
                self.deliver([work])
            error = None
        return None

    def _is_kept(self, work: Work[Any], error: Exception | None) -> bool:
        """Note the end of a try. Return whether the work has to be tried again."""
        is_final = isinstance(error, Unsupported) or not isinstance(error, StoreError)
        if is_final or (work.purpose is Purpose.SETTLE and not isinstance(error, StoreUnavailable)):
            work.error = error
            return False
        self._report_failure(work.purpose, str(error))
        if work.purpose in UNTIL_DONE:
            self.outages += 1
            return True
        work.error = CallFailed(str(error))
        return False

    def _report_failure(self, purpose: Purpose, error: str) -> None:
        since, reported = self._reported.get(purpose, (self._loop.time(), ""))
        if reported != error:
            self._reported[purpose] = since, error
            self._call_on_loop(self._bus.emit, StoreCallFailed(purpose.text, error, purpose.meanwhile))

    def _note_long_try(self, error: StoreUnavailable, began: float) -> None:
        """Note a try that took long: others may have been unable to extend their leases. Without a lock, it was an outage."""
        if isinstance(error, StoreContended | StoreBroken):
            self.outages += 1
        else:
            self._note_unavailable(error, began)

    def _unavailability(self) -> StoreUnavailable | None:
        """Return the error if the store can't begin and commit a minimal transaction. A long wait for that is an outage."""
        self.asked_at = began = self._loop.time()
        try:
            with self._store.transaction():
                self._store.clock()
        except StoreUnavailable as error:
            return error
        except Exception:
            return None  # a try of each work shows which one fails
        finally:
            self.asked_at = None
        if self._loop.time() - began > MAX_RETRY:
            self.outages += 1
        self._note_available()
        return None

    def _note_unavailable(self, error: StoreUnavailable, since: float) -> None:
        if isinstance(error, StoreReplaced) and not self._lost:
            self._lost = True
            self._call_on_loop(self._bus.emit, StoreLost(str(error)))
        self.unavailable_because = str(error)
        if self._unavailable_since is None:
            self._unavailable_since = since
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
