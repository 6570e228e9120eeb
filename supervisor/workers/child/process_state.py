"""Restore what a job changed in its process, before the next job: directory, umask, environment, time zone, signals, alarms."""

from __future__ import annotations

import os
import signal
import threading
from _signal import getsignal, pthread_sigmask  # type: ignore[import-not-found]  # those of `signal` are slower: they return enums
from collections.abc import Callable
from contextvars import Context
from time import perf_counter_ns
from types import FrameType
from typing import Any

from supervisor.workers.child.environment import Environment
from supervisor.workers.system.linux import INTERRUPT_SIGNAL

QUIET = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGVTALRM, signal.SIGPROF,
)  # fmt: skip
_DEFAULT = (signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH)
_BLOCKED_IN_FORKS = (*QUIET, INTERRUPT_SIGNAL)
TRIALS = 200
_MARGIN = 0.7
"""The machine may run at another speed when a job runs than when the calls were measured."""
_UNKNOWN = 1 << 62
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """A handler in place of SIG_IGN, which programs that the process starts would inherit."""


_DISPOSITIONS: dict[int, Any] = {
    **{int(number): ignore_signal for number in QUIET},
    **{int(number): signal.SIG_DFL for number in _DEFAULT},
    int(signal.SIGPIPE): signal.SIG_IGN,  # as in every Python program: a write to a closed pipe is an OSError
}


def quiet_signals() -> None:
    """Set the dispositions of a worker, and block no signal. Cheap where they are set already, as in a forked process."""
    for number, wanted in _DISPOSITIONS.items():
        if getsignal(number) != wanted:
            signal.signal(number, wanted)
    pthread_sigmask(signal.SIG_SETMASK, ())


def obey_signals_in_forks() -> None:
    """Make signals end the copies of this process that a job forks (with multiprocessing, for example), as they end any program.

    This holds from the start of a copy: a signal that comes before the copy has set its dispositions is blocked until then.
    """
    os.register_at_fork(before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_obey_signals)


class _Blocked(threading.local):
    def __init__(self) -> None:
        # There is one mask for each fork under way: a plugin's hook at a fork may fork, too.
        self.masks: list[set[signal.Signals]] = []


_blocked = _Blocked()


def _block_signals() -> None:
    # There are two calls, since a handler of the job may raise in either: the mask must be saved before it is changed.
    _blocked.masks.append(pthread_sigmask(signal.SIG_BLOCK, ()))
    pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_IN_FORKS)


def _unblock_signals() -> None:
    if _blocked.masks:
        pthread_sigmask(signal.SIG_SETMASK, _blocked.masks.pop())


def _obey_signals() -> None:
    """Set default dispositions, then unblock signals: an exception of a handler for a blocked signal would be lost here."""
    quiet = [number for number in QUIET if getsignal(number) is ignore_signal]
    for number in quiet:
        signal.signal(number, signal.SIG_DFL)
    _unblock_signals()
    if signal.SIGINT in quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class SideEffectTimer:
    """Measures how long the quickest calls take that can leave side effects other than another umask: a shorter job can have left none.

    The calls are measured as a job is, and repeatedly: if the machine is busy when a worker starts, they seem to take longer.
    """

    __slots__ = ("_context", "_quickest")

    def __init__(self, context: Context | None) -> None:
        """The time of a job includes that of `context.run`, unless `context` is None."""
        self._context = context
        self._quickest = _UNKNOWN

    def measure(self, trials: int = 1) -> int:
        """Return the limit in nanoseconds."""
        try:
            for _ in range(trials):
                self._quickest = min(self._quickest, self._time_of(_set_blocking, 0), self._time_of(_close, os.dup(0)))
        except OSError:  # there is no standard input at the moment, or no descriptor is left
            if self._quickest == _UNKNOWN:
                return 0
        return int(self._quickest * _MARGIN)

    def _time_of(self, call: Callable[[int], None], argument: int) -> int:
        context = self._context
        start = perf_counter_ns()
        if context is None:
            call(argument)
        else:
            context.run(call, argument)
        return perf_counter_ns() - start


def _set_blocking(fd: int) -> None:
    os.set_blocking(fd, True)


def _close(fd: int) -> None:
    os.close(fd)


def _current_directory() -> str | None:
    """Return the path of the current directory; None if it was deleted, or can't be read."""
    try:
        return os.getcwd()  # noqa: PTH109 (a path object costs more than the call)
    except OSError:
        return None


class ProcessState:
    """The state of the process before the first job. `rearm` installs the handler of the stack signal again."""

    def __init__(self, rearm: Callable[[], None]) -> None:
        self._rearm = rearm
        self._directory = _current_directory()
        self.umask = os.umask(0o077)
        os.umask(self.umask)
        self._environment = Environment()
        self._signals = _dispositions()
        self._mask = pthread_sigmask(signal.SIG_BLOCK, ())

    def restore(self, *, thorough: bool) -> bool:
        """Restore all of the state but the umask, and return whether the directory differed, as it does after chroot. `thorough` also
        installs the handler of the stack signal again, which costs more than all the rest."""
        self._environment.restore()
        if _dispositions() != self._signals:
            self._restore_signals()
        differed = self._restore_directory()
        self._restore_timers()
        if thorough:
            self._rearm()
        return differed

    def _restore_directory(self) -> bool:
        if self._directory is None or _current_directory() == self._directory:
            return False
        try:
            os.chdir(self._directory)
        except OSError:  # it was deleted: the next job starts in the directory of the last one
            pass
        return True

    def _restore_signals(self) -> None:
        for number, was in zip(_DISPOSITIONS, self._signals, strict=True):
            if getsignal(number) != was:
                signal.signal(number, was)
        self._rearm()

    def _restore_timers(self) -> None:
        for timer in _TIMERS:
            remaining, _interval = signal.getitimer(timer)
            if remaining:
                signal.setitimer(timer, 0)
        if pthread_sigmask(signal.SIG_BLOCK, ()) != self._mask:
            pthread_sigmask(signal.SIG_SETMASK, self._mask)


def _dispositions() -> list[Any]:
    return [getsignal(number) for number in _DISPOSITIONS]
