"""What a worker puts back between jobs, and only what changed: directory, mask, environment, signals, alarms."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from _signal import getsignal, pthread_sigmask  # type: ignore[import-not-found]  # the plain ones: `signal`'s wrap every answer in an enum
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType
from typing import Any

from supervisor.workers.system.linux import STACK_SIGNAL

QUIET = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
)
_DEFAULT = (signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH)
TRIALS = 200
_MARGIN = 0.9
_UNKNOWN = 1 << 62
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def stay(_number: int, _frame: FrameType | None) -> None:
    """A handler, not SIG_IGN: programs that the process starts don't inherit it."""


_WANTED: dict[int, Any] = {
    **{int(number): stay for number in QUIET},
    **{int(number): signal.SIG_DFL for number in _DEFAULT},
    int(signal.SIGPIPE): signal.SIG_IGN,  # as in every Python program: writing to a closed pipe is an OSError
}


def quiet_signals() -> None:
    """Cheap where they are quiet already, as in a forked child."""
    for number, wanted in _WANTED.items():
        if getsignal(number) != wanted:
            signal.signal(number, wanted)
    pthread_sigmask(signal.SIG_SETMASK, ())


def obey_signals_in_forks() -> None:
    """A copy of this process, such as one of multiprocessing's, is ended by signals as any program is, from its first moment:
    one that comes before it has its own dispositions waits for them."""
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_obey_signals)


class _Held(threading.local):
    def __init__(self) -> None:
        self.masks: list[set[signal.Signals]] = []  # innermost last: a hook of a plugin's may fork, too


_held = _Held()


def _hold_signals() -> None:
    # Two calls: a handler of the job's may raise in either, and what is blocked must be known by then.
    _held.masks.append(pthread_sigmask(signal.SIG_BLOCK, ()))
    pthread_sigmask(signal.SIG_BLOCK, QUIET)


def _let_signals_in() -> None:
    if _held.masks:
        pthread_sigmask(signal.SIG_SETMASK, _held.masks.pop())


def _obey_signals() -> None:
    """What was held is let in by the plain dispositions: what a handler raises here would be lost."""
    quiet = [number for number in QUIET if getsignal(number) is stay]
    for number in quiet:
        signal.signal(number, signal.SIG_DFL)
    _let_signals_in()
    if signal.SIGINT in quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class SideEffectTimer:
    """How long the quickest calls took that could leave something behind here: measured as a job's time is, again and again,
    since a machine that is busy when a worker is born would have them pass for slower than they are."""

    __slots__ = ("_mask", "_serious", "_slight")

    def __init__(self, mask: int) -> None:
        """`mask` is the umask, as it is between jobs."""
        self._mask = mask
        self._slight = self._serious = _UNKNOWN

    def look(self, trials: int = 1) -> tuple[int, int]:
        """Nanoseconds below which no call of a handler can have left anything behind, and below which it can have left
        nothing but another umask, other variables, or descriptors that block or don't."""
        try:
            for _ in range(trials):
                self._slight = min(self._slight, _time_of(_umask, self._mask), _time_of(_set_blocking, 0))
                self._serious = min(self._serious, _time_of(_close, os.dup(0)))
        except OSError:  # there is no standard input just now, or no descriptor left
            if self._serious == _UNKNOWN:
                return 0, 0
        return int(self._slight * _MARGIN), int(self._serious * _MARGIN)


def _umask(mask: int) -> None:
    os.umask(mask)


def _set_blocking(fd: int) -> None:
    os.set_blocking(fd, True)


def _close(fd: int) -> None:
    os.close(fd)


def _time_of(call: Callable[[int], None], argument: int) -> int:
    start = perf_counter_ns()
    call(argument)
    return perf_counter_ns() - start


class StackDumper:
    """Python stacks of all threads, written by faulthandler to a pipe: when asked by signal, or when nothing has beaten."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        signal.signal(STACK_SIGNAL, stay)  # whenever faulthandler's is not there: the default would end the process

    def arm(self) -> None:
        """Again and again: a job may have replaced the signal's handler."""
        faulthandler.unregister(STACK_SIGNAL)
        faulthandler.register(STACK_SIGNAL, file=self._pipe, all_threads=True, chain=False)

    def dump_after(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, file=self._pipe)


def _current_directory() -> str | None:
    """None if it was deleted, or may not be seen."""
    try:
        return os.getcwd()  # noqa: PTH109 (a path object costs more than the call)
    except OSError:
        return None


class ProcessState:
    """As they were before the first job."""

    def __init__(self, rearm: Callable[[], None]) -> None:
        self._rearm = rearm
        self._directory = _current_directory()
        self.mask = os.umask(0o077)
        os.umask(self.mask)
        self._environ = os.environ
        self._variables: dict[Any, Any] = dict(self._environ._data)  # type: ignore[attr-defined]
        self._signals = _dispositions()
        self._blocked = pthread_sigmask(signal.SIG_BLOCK, ())

    def restore(self, *, thorough: bool) -> None:
        """`thorough` arms the stack dump again too, which costs more than all the rest."""
        self.restore_cheap()
        if _dispositions() != self._signals:
            self._restore_signals()
        self._restore_directory()
        self._restore_timers()
        if thorough:
            self._rearm()

    def restore_cheap(self) -> None:
        """What takes the least time to change."""
        os.umask(self.mask)
        if os.environ is not self._environ or self._environ._data != self._variables:  # type: ignore[attr-defined]
            self._restore_environment()

    def _restore_directory(self) -> None:
        if self._directory is None or _current_directory() == self._directory:
            return
        try:
            os.chdir(self._directory)
        except OSError:  # ours was deleted: the next job finds what the last one left
            pass

    def _restore_environment(self) -> None:
        os.environ = self._environ  # noqa: B003 (the very object that others hold)
        variables = self._variables
        current = self._environ._data  # type: ignore[attr-defined]
        decode = os.fsdecode
        for key in [key for key in current if key not in variables]:
            del os.environ[decode(key)]
        for key, value in variables.items():
            if current.get(key) != value:
                os.environ[decode(key)] = decode(value)

    def _restore_signals(self) -> None:
        for number, was in zip(_WANTED, self._signals, strict=True):
            if getsignal(number) != was:
                signal.signal(number, was)
        self._rearm()

    def _restore_timers(self) -> None:
        for timer in _TIMERS:
            if signal.getitimer(timer)[0]:
                signal.setitimer(timer, 0)
        if pthread_sigmask(signal.SIG_BLOCK, ()) != self._blocked:
            pthread_sigmask(signal.SIG_SETMASK, self._blocked)


def _dispositions() -> list[Any]:
    return [getsignal(number) for number in _WANTED]
