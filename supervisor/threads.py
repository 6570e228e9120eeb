"""Threads of the supervisor, all started before it serves: later there may be none to be had."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

from supervisor.errors import SystemRefused
from supervisor.text.os_errors import no_more_threads


def start_thread(run: Callable[[], object], name: str) -> Thread:
    """Start a daemon thread. Raises SystemRefused if there is none to be had."""
    thread = Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise SystemRefused(f"the thread {name!r} can't be started: {no_more_threads()}") from error
    return thread


def started_executor(threads: int) -> ThreadPoolExecutor:
    """Return an executor that has all its threads: a call needs no new one. Raises SystemRefused if there are none to be had."""
    executor, all_started = ThreadPoolExecutor(threads, "calls"), Barrier(threads + 1)
    try:
        for _ in range(threads):
            executor.submit(all_started.wait)
        all_started.wait()
    except RuntimeError as error:
        all_started.abort()
        executor.shutdown(wait=False)
        raise SystemRefused(f"the threads for calls can't be started: {no_more_threads()}") from error
    return executor
