"""Start fresh interpreters that import from the same places as this one, and end an interpreter within a time."""

from __future__ import annotations

import os
import signal
import sys
import threading
from _thread import get_ident, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from os import write
from pathlib import Path
from select import PIPE_BUF, POLLOUT, poll
from time import sleep
from types import CodeType, FrameType
from typing import NoReturn

STDERR = 2
SIGNAL_TIMEOUT = 0.2  # seconds
LATE = (
    "threads or exit functions (atexit) of plugins have not ended {:g}s after all other work, and are cut off; the process was in {}: "
    "let them take less time"
)
MAX_LATE = 1000  # characters
MAX_THREADS = 3  # that are named

# Not by module names: those of plugin files are below this package.
_OURS = (f"{Path(__file__).parents[2]}{os.sep}", "<string>", "<frozen ")
_STANDARD = f"{Path(os.__file__).parent}{os.sep}"
_INSTALLED = tuple(f"{_STANDARD}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
# Imports make no garbage, and each collection during them looks at all that has been imported.
_BOOT = (
    "import gc, sys; gc.disable(); sys.path[:] = sys.argv[2].split('\\n'); from {0} import {1}; gc.freeze(); gc.enable(); "
    "{1}(sys.argv[1])"
)


def command(function: Callable[[str], None], argument: str) -> list[str]:
    """Return the command line that calls this function of a module, with the import path of this process."""
    boot = _BOOT.format(function.__module__, function.__name__)
    # A plugin may have put a Path there, which Python itself ignores.
    return [sys.executable, "-P", "-c", boot, argument, "\n".join(path for path in sys.path if isinstance(path, str))]


def write_line(text: str) -> None:
    write(STDERR, f"{text}\n".encode()[:PIPE_BUF])


def end_within(seconds: float, status: int, report: Callable[[str], None] = write_line) -> NoReturn:
    """Exit as usual, but after `seconds` at the latest, even if threads or exit functions of a plugin still run."""
    end_after(seconds, status, report)
    sys.exit(status)


def end_after(seconds: float, status: int, report: Callable[[str], None] = write_line) -> None:
    """End this process after so many seconds, unless it has exited by then. `report` gets a text that names the code which still
    runs, and writes it to standard error."""
    main = get_ident()

    def end(frame: FrameType | None) -> None:
        with suppress(Exception):
            text = LATE.format(seconds, _code_of_plugins(main, frame))[:MAX_LATE]
            if _takes_bytes(STDERR):  # this must never wait
                report(text)
        os._exit(status)

    def end_later() -> None:
        sleep(seconds + SIGNAL_TIMEOUT)
        end(None)

    # The signal shows what the main thread does. The thread is for code that is not interrupted, or has set another handler.
    signal.signal(signal.SIGALRM, lambda _number, frame: end(frame))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    with suppress(RuntimeError):  # no thread is to be had
        start_new_thread(end_later, ())  # not by `threading`, which a plugin may have replaced, as gevent does


def _code_of_plugins(main: int, frame: FrameType | None) -> str:
    """Return where the exit function of a plugin is that the main thread runs, or else the threads that it waits for."""
    if (where := _outermost(frame, _is_of_plugin)) is not None:
        return where
    active: dict[int, threading.Thread] = {**threading._active}  # type: ignore[attr-defined]  # `enumerate` may wait
    waited = [thread for ident, thread in active.items() if ident != main and not thread.daemon]
    where_threads = [f"{_target(thread)} (thread {thread.name})" for thread in waited[:MAX_THREADS]]
    return " and ".join(where_threads) or _outermost(frame, lambda file: not file.startswith(_OURS)) or "code in C"


def _target(thread: threading.Thread) -> str:
    """Return the function that the thread was started with. Its frames may not be read: it runs."""
    code = getattr(getattr(thread, "_target", None) or type(thread).run, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}, {code.co_name}" if isinstance(code, CodeType) else "code in C"


def _outermost(frame: FrameType | None, is_wanted: Callable[[str], bool]) -> str | None:
    """Return the outermost call on this stack whose file is wanted."""
    found = None
    while frame is not None:
        if is_wanted(frame.f_code.co_filename):
            found = f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}"
        frame = frame.f_back
    return found


def _is_of_plugin(file: str) -> bool:
    return not file.startswith(_OURS) and (file.startswith(_INSTALLED) or not file.startswith(_STANDARD))


def _takes_bytes(fd: int) -> bool:
    waiting = poll()
    waiting.register(fd, POLLOUT)
    return bool(waiting.poll(0))
