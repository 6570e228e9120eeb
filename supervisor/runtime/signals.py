"""What a signal asks for. A handler only wakes the loop; what follows is done there."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from types import FrameType

MAX_READ = 4096


class StopRequest:
    """TERM or INT: the first asks for a drain, any further one for the end now. `asked` may be for another reason."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.told = asyncio.Event()  # by a signal
        self.forced = asyncio.Event()
        self.reason = ""

    def signalled(self, name: str) -> None:
        if self.told.is_set():
            self.forced.set()
        self.told.set()
        self.ask(name)

    def ask(self, reason: str) -> None:
        if not self.asked.is_set():
            self.reason = reason
            self.asked.set()


class SignalInbox:
    """Hears signals from now until `close`, after which they are ignored: one that comes while the process ends must not
    spoil its exit code. (The loop's own handlers go back to the deadly defaults when it closes.)

    SIGPIPE stays ignored, as Python has it: a closed standard error must not end the supervisor.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stop: StopRequest, others: Mapping[signal.Signals, Callable[[], None]]
    ) -> None:
        self._loop = loop
        self._actions: dict[int, Callable[[], None]] = {int(number): action for number, action in others.items()}
        for wanted in (signal.SIGTERM, signal.SIGINT):
            self._actions[wanted] = lambda name=wanted.name: stop.signalled(name)  # type: ignore[misc]
        self._numbers, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        loop.add_reader(self._numbers, self._read)
        self.listen()

    def listen(self) -> None:
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in self._actions:
            signal.signal(number, _wake_only)

    def close(self) -> None:
        for number in self._actions:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._loop.remove_reader(self._numbers)
        os.close(self._numbers)
        os.close(self._wake)

    def _read(self) -> None:
        for number in os.read(self._numbers, MAX_READ):
            if number in self._actions:
                self._actions[number]()


def _wake_only(_number: int, _frame: FrameType | None) -> None:
    """Its number is in the pipe already."""
