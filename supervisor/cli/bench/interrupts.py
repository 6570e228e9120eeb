"""Signals that interrupt `supervisor bench`."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click


class Interrupts:
    """The first INT, TERM or HUP ends the command at its next `check` or `wait`.

    The signal handler itself raises nothing, since C code may be imported, a process forked or a folder removed just then.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._wake_fd, self._write_fd = os.pipe()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals, except those that are ignored, as under nohup."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, before[number])

    def check(self) -> None:
        if self._number is not None:
            raise click.exceptions.Exit(128 + self._number)

    def wait(self, fds: Sequence[int], seconds: float | None) -> list[int]:
        """Wait until a descriptor is readable; return those that are, or none after so many seconds."""
        ready = select.select([*fds, self._wake_fd], [], [], seconds)[0]
        self.check()
        return ready

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._number is None:
            self._number = number
            os.write(self._write_fd, b"!")
