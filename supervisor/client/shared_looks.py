"""Wait in an event loop until jobs have ended: its tasks share the looks, which a thread makes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

from supervisor.client.ended_jobs import Ask, Ended, Look, Page, Wait
from supervisor.errors import StoreUnavailable

Answer = TypeVar("Answer")

OVERTIME = 1.0
"""Seconds for the last look, which is made when the time is up."""


class InThread(Protocol):
    """A function that calls another one in a thread."""

    def __call__(self, function: Callable[..., Answer], *arguments: Any) -> Awaitable[Answer]: ...


class Waiter:
    """A task that waits. `received` are the jobs that have ended and that it has not read, `error` ends the wait behind these."""

    def __init__(self, wait: Wait, now: float) -> None:
        self.wait, self.due, self.previous = wait, now, now
        self.received: list[Ended] = []
        self.error: BaseException | None = None
        self.changed = asyncio.Event()

    def is_due(self, now: float) -> bool:
        """Return whether a look at `now` is for this task too: it is due, or at least half of its pause is over."""
        return self.error is None and now - self.previous >= (self.due - self.previous) / 2

    def receive(self, page: Page) -> None:
        self.received += self.wait.take(page)
        self.changed.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.changed.set()


class SharedLooks:
    """The tasks of one event loop that wait, and a task that looks for all of them while there are any."""

    def __init__(self, ask: Ask, in_thread: InThread) -> None:
        self.loop = asyncio.get_running_loop()
        self._ask, self._in_thread = ask, in_thread
        self._waiters: set[Waiter] = set()
        self._by_id: dict[int, set[Waiter]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def ended(self, wait: Wait) -> AsyncGenerator[Ended, None]:
        """Yield each job of the wait once it has ended, as `ended_jobs` does."""
        waiter = Waiter(wait, time.monotonic())
        self._add(waiter)
        try:
            while wait.ids or waiter.received:
                await _change(waiter)
                received, waiter.received = waiter.received, []
                for ended in received:
                    yield ended
                if waiter.error is not None and not waiter.received:
                    raise waiter.error
        finally:
            self._remove(waiter)

    def _add(self, waiter: Waiter) -> None:
        self._waiters.add(waiter)
        for id in waiter.wait.ids:
            self._by_id.setdefault(id, set()).add(waiter)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = self.loop.create_task(self._look_while_any_waits())

    def _remove(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)
        for id in waiter.wait.ids:
            waiters = self._by_id[id]
            waiters.discard(waiter)
            if not waiters:
                del self._by_id[id]
        self._changed.set()

    # --- the task that looks

    async def _look_while_any_waits(self) -> None:
        try:
            while self._waiters:
                now = time.monotonic()
                if due := [waiter for waiter in self._waiters if waiter.is_due(now)]:
                    await self._look(due)
                await self._pause()
        except BaseException as error:
            for waiter in self._waiters:
                waiter.fail(error)
            if not isinstance(error, Exception):
                raise

    async def _look(self, due: list[Waiter]) -> None:
        look = Look(self._ask, dict.fromkeys(id for waiter in due for id in waiter.wait.ids))
        pages, problem = look.pages(), None
        try:
            while (page := await self._in_thread(next, pages, None)) is not None:
                self._deliver(page)
        except StoreUnavailable as error:
            problem = error
        for waiter in due:
            try:
                _note(waiter, look.took, problem)
            except (TimeoutError, StoreUnavailable) as error:
                waiter.fail(error)

    def _deliver(self, page: Page) -> None:
        for id, job in page:
            for waiter in self._by_id.pop(id, ()):
                waiter.receive([(id, job)])

    async def _pause(self) -> None:
        """Wait until a look is due, or a task begins or ends to wait."""
        self._changed.clear()
        if not self._waiters:
            return
        first = min((waiter.due for waiter in self._waiters if waiter.error is None), default=None)
        try:
            async with asyncio.timeout(None if first is None else max(0.0, first - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            pass


def _note(waiter: Waiter, took: float, problem: StoreUnavailable | None) -> None:
    """Note the end of a look. Raises TimeoutError or StoreUnavailable, which ends the wait."""
    now = time.monotonic()
    if problem is None:
        waiter.wait.has_looked()
    else:
        waiter.wait.note_unavailable(problem, now)
    if waiter.wait.ids:
        waiter.previous, waiter.due = now, waiter.wait.next_look(now, took)


async def _change(waiter: Waiter) -> None:
    """Wait until the waiter has received something, or an error."""
    try:
        async with asyncio.timeout(waiter.wait.seconds_left(time.monotonic(), OVERTIME)):
            await waiter.changed.wait()
    except TimeoutError:
        raise waiter.wait.time_is_up() from None
    waiter.changed.clear()
