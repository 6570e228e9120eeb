"""Threads, waiting, child processes, timers and the log of the supervisor stay as they are, whatever a plugin replaces, sets or
configures.

gevent and eventlet replace them by green threads, which would run only while the loop of the supervisor does not. Workers keep what
is replaced, since handlers use it: their own code imports the names that it needs before the plugins.
"""

from __future__ import annotations

import _thread
import logging
import os
import queue
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MODULES = (_thread, os, queue, select, selectors, signal, subprocess, threading, time)
_NOT_OURS = ("environ", "environb")
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


@contextmanager
def kept_primitives() -> Iterator[None]:
    """Restore at the end what was replaced meanwhile, or removed."""
    main = threading.main_thread()
    # gevent and eventlet also replace locks of log handlers, and the identity of the main thread.
    namespaces = map(vars, (*_MODULES, main, *logging.getLogger().handlers))
    before: list[tuple[dict[Any, Any], dict[Any, Any]]] = [(namespace, {**namespace}) for namespace in namespaces]
    before.append((threading._active, {main.ident: main}))  # type: ignore[attr-defined]
    before.append((vars(logging), {"_lock": logging._lock}))  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for namespace, values in before:
            namespace.update({name: value for name, value in values.items() if name not in _NOT_OURS})


@contextmanager
def kept_timers() -> Iterator[None]:
    """Restore at the end the timers that send signals, as `signal.alarm` does: such a signal would come at any time later, and meet code
    that does not expect it."""
    before = {timer: signal.getitimer(timer) for timer in _TIMERS}
    try:
        yield
    finally:
        for timer, (seconds, interval) in before.items():
            signal.setitimer(timer, seconds, interval)


@contextmanager
def kept_log() -> Iterator[None]:
    """Undo at the end what a configuration of logging does to the log of the supervisor: other levels, removed handlers, loggers
    disabled. Handlers that were added stay, but not those that write to the standard streams, where the log itself goes."""
    root = logging.getLogger()
    handlers, level, disabled = [*root.handlers], root.level, root.manager.disable
    try:
        yield
    finally:
        root.setLevel(level)
        shown = (sys.stdout, sys.stderr)
        added = [it for it in root.handlers if it not in handlers and getattr(it, "stream", None) not in shown]
        root.handlers[:] = [*handlers, *added]
        logging.disable(disabled)
        for name in [*root.manager.loggerDict]:
            if f"{name}.".startswith("supervisor."):
                logging.getLogger(name).disabled = False
