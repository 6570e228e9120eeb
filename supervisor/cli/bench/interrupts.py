"""How `supervisor bench` is interrupted."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click


class Interrupts:
    """The first INT, TERM or HUP ends the command, but only where it asks: an exception out of the blue may come while C code is
    imported, a process forked or a folder removed."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._woken, self._wake = os.pipe()

    @contextmanager
    def heard(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            if before[number] is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._hear)
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, before[number])

    def check(self) -> None:
        if self._number is not None:
            raise click.exceptions.Exit(128 + self._number)

    def wait(self, fds: Sequence[int], seconds: float | None) -> list[int]:
        """Those that are readable, once one is; none after so many seconds."""
        ready = select.select([*fds, self._woken], [], [], seconds)[0]
        self.check()
        return ready

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if self._number is None:
            self._number = number
            os.write(self._wake, b"!")
