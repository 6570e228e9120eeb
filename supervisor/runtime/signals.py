"""Signals: a handler only wakes the loop, which then acts on the signal. None that can be caught ends the supervisor without a line,
except those of faults, such as SEGV, and of systemd's watchdog, ABRT.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import FrameType
from typing import Any

from supervisor.events import Event, SignalReceived
from supervisor.runtime.tasks import cancel, done_or_set
from supervisor.workers.system.linux import name_of_signal

MAX_READ = 4096
SAME_SECONDS = 1.0

_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGPWR, signal.SIGXCPU}
_TIMERS = {
    signal.ITIMER_REAL: signal.SIGALRM,
    signal.ITIMER_VIRTUAL: signal.SIGVTALRM,
    signal.ITIMER_PROF: signal.SIGPROF,
}
_IGNORED = {
    signal.SIGUSR2, signal.SIGIO, signal.SIGSTKFLT, *_TIMERS.values(), *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
}  # fmt: skip

DRAIN = "running jobs have shutdown.grace to end; a second TERM or INT kills and releases them at once"
FORCE = "running jobs are killed and released"
SAME = f"counted as one with the first, since it came within {SAME_SECONDS:g}s; a later one kills and releases the running jobs"
REPEATED = "counted as one with the first: the kernel sends it again for each second over the limit of CPU time"
IGNORE = "ignored: a supervisor has no use for it"


class StopRequest:
    """The request to end, and its reason.

    The first TERM or INT requests a drain, any further one the end now (`forced`). The same signal within `SAME_SECONDS` is none
    further: programs such as `timeout` send it to the process and then to its group, and others pass on a Ctrl-C that has reached
    the group. The end may be requested without a signal: when a drain is complete, or because of an internal error (`fault`).
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.signalled = asyncio.Event()
        self.forced = asyncio.Event()
        self.reason = ""
        self._first = ("", 0.0)
        self.fault: BaseException | None = None

    def request(self, reason: str) -> None:
        if not self.requested.is_set():
            self.reason = reason
            self.requested.set()

    def on_signal(self, name: str, now: float) -> str:
        """Return the effect of the signal, as text. `now` is monotonic seconds."""
        if self.signalled.is_set():
            first, at = self._first
            if name == signal.SIGXCPU.name:
                return REPEATED
            if name == first and now - at < SAME_SECONDS and not self.forced.is_set():
                return SAME
            self.forced.set()
            return FORCE
        self._first = (name, now)
        self.signalled.set()
        self.request(name)
        return DRAIN

    def fail(self, error: BaseException, reason: str) -> None:
        """Request a drain that ends as after an internal error."""
        self.fault = self.fault or error
        self.request(reason)

    def handle_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception of the loop: end the supervisor. It is better to be started again, with every lease recovered, than
        to go on without one of the parts. A connection is no part: only the HTTP server has some, and asyncio closes this one."""
        if "transport" in context:
            loop.default_exception_handler(context)
            return
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

    `others` are the actions of signals that do not end the supervisor; each returns its effect as text, which goes to `emit`.
    An alarm that was set before, as by `perl -e 'alarm 60; exec …'`, ends the supervisor.

    SIGPIPE stays ignored, as in every Python program: a closed standard error must not end the supervisor.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stop: StopRequest, others: Mapping[signal.Signals, Callable[[], str]],
        emit: Callable[[Event], None],
    ) -> None:  # fmt: skip
        self._loop = loop
        self._emit = emit
        self._actions: dict[int, Callable[[], str]] = {int(number): action for number, action in others.items()}
        alarms = {number for timer, number in _TIMERS.items() if signal.getitimer(timer)[0]}
        for wanted in (*_ENDING, *alarms):
            self._actions[wanted] = partial(self._end, stop, wanted.name)
        for unwanted in _IGNORED - alarms:
            if signal.getsignal(unwanted) is signal.SIG_DFL:
                signal.signal(unwanted, _wake_only)
        self._numbers, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        loop.add_reader(self._numbers, self._read)
        self.listen()

    def listen(self) -> None:
        """Set the handlers, again if a plugin has set its own. For other signals a plugin may have one."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (*self._actions, *_TIMERS.values()):
            signal.signal(number, _wake_only)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*self._actions, *_IGNORED))

    def close(self) -> None:
        for number in (*self._actions, *_IGNORED):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._loop.remove_reader(self._numbers)
        os.close(self._numbers)
        os.close(self._wake)

    def _read(self) -> None:
        for number in os.read(self._numbers, MAX_READ):
            if number in self._actions:
                self._emit(SignalReceived(name_of_signal(number), self._actions[number]()))
            elif signal.getsignal(number) is _wake_only:
                self._emit(SignalReceived(name_of_signal(number), IGNORE))

    def _end(self, stop: StopRequest, name: str) -> str:
        return stop.on_signal(name, self._loop.time())


def _wake_only(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the interpreter has already written the number to the pipe."""
