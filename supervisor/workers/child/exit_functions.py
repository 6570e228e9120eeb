"""Run the exit functions (`atexit`) that the code of plugins has registered in this worker, as Python does when a program ends.

A forked worker also inherits those that were registered by imports. They belong to the forkserver, which runs them when it exits.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import finalize

from supervisor.workers.child.stdio import flush_streams
from supervisor.workers.system import interpreter

EXIT_TIMEOUT = 5.0  # seconds


def leave_inherited() -> None:
    """Leave the exit functions registered so far to the forkserver. Called in a forked worker, before code of plugins runs.

    Exit functions run in reverse order: `_end`, the first one of this process, ends it before those that it has inherited.
    """
    atexit.register(_end)
    _forget_buffered_records()
    atexit.register(logging.shutdown)
    # Libraries register one exit function, once, for all that they have to clean up: in this process they would do so no more.
    with suppress(AttributeError):  # of another version of Python
        for inherited in [*finalize._registry]:  # type: ignore[attr-defined]
            inherited.atexit = False
        atexit.register(finalize._exitfunc)  # type: ignore[attr-defined]
    multiprocessing: Any = sys.modules.get("multiprocessing")
    with suppress(AttributeError):
        multiprocessing.process._children.clear()
        atexit.register(multiprocessing.util._exit_function)


def _forget_buffered_records() -> None:
    """Leave the records that handlers have gathered since an import to the forkserver, which writes them when it exits."""
    handlers: Any = sys.modules.get("logging.handlers")
    with suppress(AttributeError):
        for reference in [*logging._handlerList]:  # type: ignore[attr-defined]
            handler = reference()
            if isinstance(handler, handlers.BufferingHandler):
                handler.buffer = []


_status = 0


def run(report: Callable[[str], None], status: int) -> None:
    """Wait for threads and run exit functions, for at most `EXIT_TIMEOUT`; `report` gets what is cut off. A forked worker ends here."""
    global _status
    _status = status
    interpreter.end_after(EXIT_TIMEOUT, status, report)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def _end() -> None:
    flush_streams()
    os._exit(_status)
