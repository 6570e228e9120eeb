"""Start fresh interpreters that import from the same places as this one, and end an interpreter within a time."""

from __future__ import annotations

import os
import signal
import sys
from _thread import start_new_thread
from collections.abc import Callable
from time import sleep
from typing import NoReturn

_BOOT = "import sys; sys.path[:] = sys.argv[2].split('\\n'); from {0} import {1}; {1}(sys.argv[1])"


def command(function: Callable[[str], None], argument: str) -> list[str]:
    """Return the command line that calls this function of a module, with the import path of this process."""
    boot = _BOOT.format(function.__module__, function.__name__)
    # A plugin may have put a Path there, which Python itself ignores.
    return [sys.executable, "-P", "-c", boot, argument, "\n".join(path for path in sys.path if isinstance(path, str))]


def end_within(seconds: float, status: int) -> NoReturn:
    """Exit as usual, but after `seconds` at the latest, even if threads or exit hooks of a plugin still run."""

    def end() -> None:
        sleep(seconds)
        os._exit(status)

    try:
        start_new_thread(end, ())  # not by `threading`, which a plugin may have replaced, as gevent does
    except RuntimeError:  # no thread is to be had
        signal.signal(signal.SIGALRM, lambda _number, _frame: os._exit(status))
        signal.setitimer(signal.ITIMER_REAL, seconds)
    sys.exit(status)
