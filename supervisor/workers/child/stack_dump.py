"""Dumps the Python stacks of a worker to its pipe, on request or when it hangs."""

from __future__ import annotations

import faulthandler
import signal

from supervisor.workers.child.process_state import ignore_signal
from supervisor.workers.system.linux import STACK_SIGNAL


class StackDumper:
    """Has faulthandler write the stacks of all threads: at STACK_SIGNAL, and some time after the last heartbeat."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        # While faulthandler's handler is not there: the default would end the process.
        signal.signal(STACK_SIGNAL, ignore_signal)

    def arm(self) -> None:
        """Install faulthandler's handler. Called again and again, since a job may have replaced it."""
        faulthandler.unregister(STACK_SIGNAL)
        faulthandler.register(STACK_SIGNAL, file=self._pipe, all_threads=True, chain=False)

    def dump_after(self, seconds: float) -> None:
        """Dump in so many seconds, unless this is called again before."""
        faulthandler.dump_traceback_later(seconds, file=self._pipe)
