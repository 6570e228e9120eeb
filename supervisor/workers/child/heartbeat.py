"""The heartbeat of a worker: one byte at each interval, as long as its interpreter runs threads."""

from __future__ import annotations

import os
import signal
from _thread import start_new_thread
from collections.abc import Callable
from os import write
from time import monotonic, sleep

from supervisor.workers.child.interruption import Interrupter
from supervisor.workers.child.stack_dump import StackDumper

MAX_PERIOD = 0.25  # seconds from one look at the clock to the next


class Heartbeat:
    """The worker's only thread besides the main one. `interval` is that of the running job, `shortest` the least of all jobs. The
    `interrupter`, if there is one, interrupts jobs from this thread, and `send_progress` sends what they have reported."""

    def __init__(
        self, pipe: int, interval: float, shortest: float, stack: StackDumper, interrupter: Interrupter | None = None,
        send_progress: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.interval = interval
        self._pipe = pipe
        self._period = min(MAX_PERIOD, shortest)
        self._stack = stack
        self._interrupter = interrupter
        self._send_progress = send_progress

    def start(self) -> None:
        self._arm()
        if self._interrupter is not None:
            self._interrupter.start()
        # The names were imported before the plugins, which may replace those of the modules, as gevent does (greenlets do not run).
        # Unlike `threading`, this does not wait until the thread runs, and jobs that count threads don't see the thread.
        start_new_thread(self.run, ())

    def run(self) -> None:
        last = float("-inf")
        while True:
            try:
                now = monotonic()
                if now - last >= self.interval:
                    last = now
                    self._write()
            except MemoryError:  # a job may have left no memory, not even for a number, but the worker still runs
                self._write()
            try:
                self._send_progress()
            except Exception:  # it comes later, or with the end of the job
                pass
            self._wait()
            self._arm()

    def _wait(self) -> None:
        if self._interrupter is None:
            sleep(self._period)
            return
        try:
            self._interrupter.wait(self._period)
        except Exception:  # a job may have left no memory
            sleep(self._period)

    def _write(self) -> None:
        try:
            write(self._pipe, b".")
        except BrokenPipeError:  # the supervisor has exited, and a job had moved this worker out of its group
            os.kill(os.getpid(), signal.SIGKILL)
        except OSError:  # the pipe is full, since the supervisor is stopped; or a job has closed it
            pass

    def _arm(self) -> None:
        try:
            self._stack.arm()
        except Exception:  # contextlib.suppress would take memory, of which a job may have left too little
            pass
