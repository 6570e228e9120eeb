"""Interrupt a handler that runs: raise JobTimeout or JobCancelled in it, and nowhere else.

Handlers that can't be interrupted run as if this module were not there. Around each other one, a function notes its job as the one
that may be interrupted. The heartbeat thread looks at that and sends INTERRUPT_SIGNAL to the main thread, which also ends waits in
system calls; the signal's handler runs in the main thread, between two bytecodes, and raises if the same job still runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from signal import SIG_BLOCK, getsignal, pthread_kill, pthread_sigmask, sigtimedwait
from signal import signal as set_handler
from threading import get_ident
from time import monotonic, sleep
from types import FrameType
from typing import Any, NamedTuple

from supervisor.handlers import Handler, JobCancelled, JobTimeout
from supervisor.jobs import Job
from supervisor.text.units import parse_duration
from supervisor.workers.child import process_state, record_handler, stdio
from supervisor.workers.system.linux import CANCEL_SIGNAL, INTERRUPT_SIGNAL

MIN_WAIT = 0.005  # seconds
FIRST_REPEAT, MAX_REPEAT = 0.005, 0.25  # seconds until the signal is sent again, if it has raised nothing
OF_ALL = ""
"""The key, beside names of handlers, of the settings of all handlers that have none of their own."""
CANCELLED = "the job was cancelled"
UNSAFE = (vars(process_state), vars(record_handler), vars(stdio))
"""The modules whose functions must not be interrupted."""


def timeout_text(seconds: float) -> str:
    return f"still running after its soft_timeout of {seconds:g}s"


class Interruptions(NamedTuple):
    """When a handler is interrupted: `soft_timeout` seconds after its start, and if its job is cancelled and `cancel_grace` is set."""

    soft_timeout: float | None = None
    cancel_grace: float | None = None


def interruptions(settings: Mapping[str, Mapping[str, float | None]], handler: Handler) -> Interruptions:
    """Return those of the handler. The settings of its name go before its decorator's options, and these before those OF_ALL."""
    decorated = {key: _limit(value) for key in Interruptions._fields if (value := getattr(handler, key)) is not None}
    return Interruptions(**{**settings.get(OF_ALL, {}), **decorated, **settings.get(handler.name, {})})


def _limit(value: float | str) -> float | None:
    return None if value == "none" else parse_duration(value)


class Interrupter:
    """Interrupts the handlers of one worker. The main thread sets `job` and `deadline`, in the order that makes a job without its
    deadline visible to nobody."""

    def __init__(self, handlers: Mapping[str, Handler], settings: Mapping[str, Mapping[str, float | None]]) -> None:
        found = {name: interruptions(settings, handler) for name, handler in handlers.items()}
        self.handlers = {
            name: self._interruptible(handler, found[name].soft_timeout) if any(found[name]) else handler
            for name, handler in handlers.items()
        }
        """The handlers, with the functions of those that may be interrupted replaced."""
        self._shortest = max(MIN_WAIT, min([inf, *(it.soft_timeout for it in found.values() if it.soft_timeout)]))
        self._cancels = any(it.cancel_grace for it in found.values())
        self.needed = any(map(any, found.values()))
        self._job: Job | None = None
        self._deadline = inf
        self._cancelled = False
        """Whether the job that runs, or is the next one, is cancelled: the worker gets no other."""
        self._due: tuple[Job, BaseException] | None = None
        self._repeat = FIRST_REPEAT
        self._limit: float = 0.0
        self._main = get_ident()

    def start(self) -> None:
        """Prepare the main thread, before others are started: CANCEL_SIGNAL is only for the thread that waits for it."""
        set_handler(INTERRUPT_SIGNAL, self._interrupt)
        if self._cancels:
            set_handler(CANCEL_SIGNAL, self._cancel)  # a job may unblock it
            pthread_sigmask(SIG_BLOCK, (CANCEL_SIGNAL,))

    # in the main thread

    def _interruptible(self, handler: Handler, soft_timeout: float | None) -> Handler:
        return replace(handler, function=_noted(self, handler.function, soft_timeout))

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        """Raise what is due in the job that runs. If that is not possible here, the signal comes again."""
        due, job = self._due, self._job
        if due is None or job is None or due[0] is not job or not _is_in_handler(frame):
            return
        self._due = None
        if isinstance(due[1], JobCancelled):
            self._cancelled = False
        else:
            self._deadline = inf
        raise due[1]

    def _cancel(self, _number: int, _frame: FrameType | None) -> None:
        self._cancelled = True

    # in the heartbeat thread

    def wait(self, seconds: float) -> None:
        """Wait for so long at most; interrupt the handler if that is due before or after."""
        seconds = min(seconds, self._look())
        if not self._cancels:
            sleep(seconds)
        elif sigtimedwait((CANCEL_SIGNAL,), seconds) is not None:
            self._cancelled = True
            self._look()

    def _look(self) -> float:
        """Interrupt the handler if that is due; return the seconds until the next look."""
        job = self._job
        if job is None:
            return self._shortest
        if self._cancelled:
            job._cancelled = True
            due: BaseException = JobCancelled(CANCELLED)
        elif (left := self._deadline - monotonic()) > 0:
            self._repeat = FIRST_REPEAT
            return min(self._shortest, max(left, 0.0))
        else:
            due = JobTimeout(timeout_text(self._limit))
        self._due = job, due
        pthread_kill(self._main, INTERRUPT_SIGNAL)
        repeat, self._repeat = self._repeat, min(2 * self._repeat, MAX_REPEAT)
        return repeat


def _noted(state: Interrupter, function: Callable[[Job], Any], soft_timeout: float | None) -> Callable[[Job], Any]:
    """Return a function that calls the handler's, and notes meanwhile that its job may be interrupted. It calls nothing of Python's
    besides, so that its own frame is the interrupted one before and after that call."""
    interrupt = state._interrupt

    def run(job: Job) -> Any:
        if getsignal(INTERRUPT_SIGNAL) is not interrupt:  # an earlier job has replaced it
            set_handler(INTERRUPT_SIGNAL, interrupt)
        if soft_timeout is None:
            state._deadline = inf
        else:
            state._limit = soft_timeout
            state._deadline = monotonic() + soft_timeout
        state._job = job
        try:
            return function(job)
        finally:
            state._job = None

    return run


_RUN = next(code for code in _noted.__code__.co_consts if hasattr(code, "co_code"))
"""The code of all functions that `_noted` returns."""


def _is_in_handler(frame: FrameType | None) -> bool:
    """Return whether the frame belongs to the handler, and an exception raised in it reaches the handler's code."""
    if frame is None or frame.f_code is _RUN:
        return False
    while frame is not None and frame.f_code is not _RUN:
        if frame.f_code.co_name == "__del__" or any(frame.f_globals is each for each in UNSAFE):
            return False
        frame = frame.f_back
    return frame is not None
