"""The terminal from which a supervisor was started. When it is closed, it sends HUP, as an operator does who wants a reload."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from time import monotonic

from supervisor.workers.system import process_tree as proctree

RECENT = 5.0  # seconds: shells send HUP too, once they notice that their terminal was closed


def _has_terminal() -> bool:
    now = proctree.stat(os.getpid())
    return now is not None and now.has_terminal


class Terminal:
    """Knows whether the terminal of this process was closed just now. `keeps_running` is whether the process is to survive that, as
    under `nohup`."""

    def __init__(self, has_terminal: Callable[[], bool] = _has_terminal, now: Callable[[], float] = monotonic) -> None:
        self.keeps_running = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._has_terminal = has_terminal
        self._now = now
        self._there = has_terminal()
        self._closed_at = float("-inf")

    def look(self) -> None:
        """Note whether the terminal is there. Called now and then: to a process in the background, a closed terminal sends nothing."""
        if self._there and not self._has_terminal():
            self._there, self._closed_at = False, self._now()

    def was_closed(self) -> bool:
        """Return whether a HUP that arrives now comes from the closed terminal."""
        self.look()
        return self._now() - self._closed_at < RECENT
