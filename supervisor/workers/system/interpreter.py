"""Fresh interpreters that import what this one imports, from the same places; and how an interpreter exits."""

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
    """Return the command that calls this function of a module. It adds no directory to the path."""
    boot = _BOOT.format(function.__module__, function.__name__)
    return [sys.executable, "-P", "-c", boot, argument, "\n".join(sys.path)]


def end_within(seconds: float, status: int) -> NoReturn:
    """Exit as usual, but at the latest after so many seconds, whatever threads or exit hooks of a plugin still run."""

    def end() -> None:
        sleep(seconds)
        os._exit(status)

    try:
        start_new_thread(end, ())  # not by `threading`, which a plugin may have replaced, as gevent does
    except RuntimeError:  # no thread is to be had
        signal.signal(signal.SIGALRM, lambda _number, _frame: os._exit(status))
        signal.setitimer(signal.ITIMER_REAL, seconds)
    sys.exit(status)
