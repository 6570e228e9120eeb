"""Signals: a handler only wakes the loop, which then acts on the signal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from types import FrameType
from typing import Any

from supervisor.runtime.tasks import cancel, done_or_set

MAX_READ = 4096


class StopRequest:
    """The request to end, and its reason.

    The first TERM or INT requests a drain, any further one the end now (`forced`). The end may be requested without a signal:
    when a drain is complete, or because of an internal error (`fault`).
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.signalled = asyncio.Event()
        self.forced = asyncio.Event()
        self.reason = ""
        self.fault: BaseException | None = None

    def request(self, reason: str) -> None:
        if not self.requested.is_set():
            self.reason = reason
            self.requested.set()

    def on_signal(self, name: str) -> None:
        if self.signalled.is_set():
            self.forced.set()
        self.signalled.set()
        self.request(name)

    def fail(self, error: BaseException, reason: str) -> None:
        """Request a drain that ends as after an internal error."""
        self.fault = self.fault or error
        self.request(reason)

    def handle_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception of the loop: end the supervisor. It is better to be started again, with every lease recovered, than
        to go on without one of the parts."""
        self.fault = self.fault or context.get("exception") or RuntimeError(context["message"])
        loop.default_exception_handler(context)
        self.request("internal error")
        self.forced.set()

    async def run_until_requested(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work, but cancel it when a stop is requested. Raises what the work raises."""
        task = asyncio.ensure_future(work)
        await done_or_set(task, self.requested)
        if not task.done():
            await cancel(task)
        if not task.cancelled():
            task.result()


class SignalInbox:
    """Receives signals from now until `close`, and ignores them from then on: a signal must not change the exit code of a
    process that ends. (When the loop closes, it resets its own handlers to the default, which kills.)

    SIGPIPE stays ignored, as in every Python program: a closed standard error must not end the supervisor.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stop: StopRequest, others: Mapping[signal.Signals, Callable[[], None]]
    ) -> None:
        self._loop = loop
        self._actions: dict[int, Callable[[], None]] = {int(number): action for number, action in others.items()}
        for wanted in (signal.SIGTERM, signal.SIGINT):
            self._actions[wanted] = lambda name=wanted.name: stop.on_signal(name)  # type: ignore[misc]
        self._numbers, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        loop.add_reader(self._numbers, self._read)
        self.listen()

    def listen(self) -> None:
        """Set the handlers, again if a plugin has set its own."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in self._actions:
            signal.signal(number, _wake_only)

    def close(self) -> None:
        for number in self._actions:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._loop.remove_reader(self._numbers)
        os.close(self._numbers)
        os.close(self._wake)

    def _read(self) -> None:
        for number in os.read(self._numbers, MAX_READ):
            if number in self._actions:
                self._actions[number]()


def _wake_only(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the interpreter has already written the number to the pipe."""
