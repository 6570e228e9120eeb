"""What a signal asks for. A handler only wakes the loop; what follows is done there."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping


class StopRequest:
    """TERM or INT: the first asks for a drain, any further one for the end now."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.forced = asyncio.Event()
        self.reason = ""

    def signalled(self, name: str) -> None:
        if self.asked.is_set():
            self.forced.set()
        else:
            self.ask(name)

    def ask(self, reason: str) -> None:
        if not self.asked.is_set():
            self.reason = reason
            self.asked.set()


def listen(
    loop: asyncio.AbstractEventLoop, stop: StopRequest, others: Mapping[signal.Signals, Callable[[], None]]
) -> None:
    """SIGPIPE stays ignored, as Python has it: a closed standard error must not end the supervisor."""
    for wanted in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(wanted, stop.signalled, wanted.name)
    for wanted, action in others.items():
        loop.add_signal_handler(wanted, action)
