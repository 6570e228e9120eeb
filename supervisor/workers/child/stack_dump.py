"""Dumps the Python stacks of a worker to its pipe when the supervisor asks, which it does only before it kills the worker."""

from __future__ import annotations

import faulthandler
import signal

from supervisor.workers.child.process_state import ignore_signal
from supervisor.workers.system.linux import STACK_SIGNAL


class StackDumper:
    """Has faulthandler write the stacks of all threads at STACK_SIGNAL.

    It reads the frames of threads that run meanwhile, which may end the process by SIGSEGV. So it must never dump by itself.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        # While faulthandler's handler is not there: the default would end the process.
        signal.signal(STACK_SIGNAL, ignore_signal)

    def arm(self) -> None:
        """Install faulthandler's handler. Called again and again, since a job may have replaced it."""
        faulthandler.unregister(STACK_SIGNAL)
        faulthandler.register(STACK_SIGNAL, file=self._pipe, all_threads=True, chain=False)
