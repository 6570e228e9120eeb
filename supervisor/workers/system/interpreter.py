"""Start fresh interpreters that import from the same places as this one, and end an interpreter within a time."""

from __future__ import annotations

import os
import signal
import sys
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from os import write
from pathlib import Path
from select import PIPE_BUF, POLLOUT, poll
from time import sleep
from types import FrameType
from typing import NoReturn

STDERR = 2
SIGNAL_TIMEOUT = 0.2  # seconds
LATE = (
    "threads or exit functions (atexit) of plugins have not ended {:g}s after all other work, and are cut off; the process was in {}: "
    "let them take less time\n"
)

_OURS = (
    f"{Path(__file__).parents[2]}{os.sep}",
    "<string>",
)  # not by module names: those of plugin files are below this package
_BOOT = "import sys; sys.path[:] = sys.argv[2].split('\\n'); from {0} import {1}; {1}(sys.argv[1])"


def command(function: Callable[[str], None], argument: str) -> list[str]:
    """Return the command line that calls this function of a module, with the import path of this process."""
    boot = _BOOT.format(function.__module__, function.__name__)
    # A plugin may have put a Path there, which Python itself ignores.
    return [sys.executable, "-P", "-c", boot, argument, "\n".join(path for path in sys.path if isinstance(path, str))]


def end_within(seconds: float, status: int) -> NoReturn:
    """Exit as usual, but after `seconds` at the latest, even if threads or exit functions of a plugin still run."""
    end_after(seconds, status)
    sys.exit(status)


def end_after(seconds: float, status: int) -> None:
    """End this process after so many seconds, unless it has exited by then. A line on standard error names the code that still runs."""

    def end(frame: FrameType | None) -> None:
        with suppress(Exception):
            line = LATE.format(seconds, _code_of_plugins(frame)).encode()
            if _takes_bytes(STDERR):  # this must never wait
                write(STDERR, line[:PIPE_BUF])
        os._exit(status)

    def end_later() -> None:
        sleep(seconds + SIGNAL_TIMEOUT)
        end(None)

    # The signal shows what the main thread does. The thread is for code that is not interrupted, or has set another handler.
    signal.signal(signal.SIGALRM, lambda _number, frame: end(frame))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    with suppress(RuntimeError):  # no thread is to be had
        start_new_thread(end_later, ())  # not by `threading`, which a plugin may have replaced, as gevent does


def _code_of_plugins(frame: FrameType | None) -> str:
    """Return the outermost call on this stack that is not of this project: an exit function, or the wait for a thread."""
    found = "code in C"
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OURS):
            found = f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}"
        frame = frame.f_back
    return found


def _takes_bytes(fd: int) -> bool:
    waiting = poll()
    waiting.register(fd, POLLOUT)
    return bool(waiting.poll(0))
