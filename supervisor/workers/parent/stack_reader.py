"""Reads the Python stacks that a worker dumps into its pipe, unasked when it hangs, or on request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from supervisor.workers.channels import CHUNK
from supervisor.workers.parent.stack_text import is_whole, readable


class StackReader:
    """Keeps the end of what was dumped, and calls `received` when more has come.

    `dump` is emptied by the job channel at each outcome: what was dumped before shows another job.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pipe: int, received: Callable[[], None]) -> None:
        self._loop = loop
        self._pipe = pipe
        self._received = received
        self.dump = b""
        self._dump_before = b""
        loop.add_reader(pipe, self._readable)

    def expect(self) -> None:
        """A dump is being requested. What the worker dumped unasked is kept in case that no more comes."""
        self._dump_before, self.dump = self.dump, b""

    def _readable(self) -> None:
        if self._read():
            self._received()

    def _read(self) -> bool:
        try:
            data = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._pipe)
        self.dump = (self.dump + data)[-CHUNK:]
        return bool(data)

    def is_whole(self) -> bool:
        """Return whether the dump has come down to the worker's own frames."""
        return is_whole(_text(self.dump))

    def stack(self) -> str | None:
        """Read what is left, and return the stack of the job that runs, if any was dumped."""
        self._read()
        return readable(_text(self.dump)) or readable(_text(self._dump_before))

    def close(self) -> None:
        self._loop.remove_reader(self._pipe)


def _text(dump: bytes) -> str:
    return dump.decode(errors="replace")
