"""Dump the Python stacks of a worker to a pipe at a signal, which the supervisor sends only before it kills the worker."""

from __future__ import annotations

import faulthandler
import signal

from supervisor.workers.child.process_state import ignore_signal
from supervisor.workers.system.linux import STACK_SIGNAL


class StackDumper:
    """Makes faulthandler write the stacks of all threads at STACK_SIGNAL.

    A dump reads the frames of threads that run meanwhile, which may crash the process. So there is none without the signal.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        # For the time without faulthandler's handler: the default disposition would end the process.
        signal.signal(STACK_SIGNAL, ignore_signal)

    def arm(self) -> None:
        """Install faulthandler's handler. Called again and again, since a job may have replaced it."""
        faulthandler.unregister(STACK_SIGNAL)
        faulthandler.register(STACK_SIGNAL, file=self._pipe, all_threads=True, chain=False)
