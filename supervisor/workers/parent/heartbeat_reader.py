"""Read a worker's heartbeat pipe, to which its job may write too."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from supervisor.workers.channels import CHUNK

HEARTBEAT = b"."
READ_INTERVAL = 0.010  # seconds: however much is written, the loop has time for other things
MAX_BYTES = 4096
"""The limit of one read: a worker that sends heartbeats without a pause writes a hundredth of this in the interval."""


class HeartbeatCheck:
    """The check of each read. One may exceed MAX_BYTES, if the supervisor did not run for a time, but not two in a row."""

    __slots__ = ("_receive", "_was_too_long")

    def __init__(self, receive: Callable[[bytes], str | None] | None = None) -> None:
        """`receive` gets what is between the heartbeats, and returns what is wrong with it, or None; without it nothing may be there."""
        self._was_too_long = False
        self._receive = receive

    def fault(self, data: bytes) -> str | None:
        """Return what is wrong with the bytes of one read, or None."""
        if self._receive is not None:
            if fault := self._receive(data.replace(HEARTBEAT, b"")):
                return fault
        elif data.strip(HEARTBEAT):
            return f"expected heartbeats, got {data[:80]!r}"
        before, self._was_too_long = self._was_too_long, len(data) > MAX_BYTES
        return "it floods its heartbeat pipe" if before and self._was_too_long else None


class HeartbeatReader:
    """Calls `received` when heartbeats have come, and `broken` or `closed` with a reason."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pipe: int, received: Callable[[], None], broken: Callable[[str], None],
        closed: Callable[[str], None], reported: Callable[[bytes], str | None] | None = None,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._pipe = pipe
        self._received = received
        self._broken = broken
        self._closed = closed
        self._check = HeartbeatCheck(reported)
        self._timer: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._pipe, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return
        self._loop.remove_reader(self._pipe)
        if not data:
            self._closed("it closed its heartbeat pipe")
        elif fault := self._check.fault(data):
            self._broken(fault)
        else:
            self._received()
            self._timer = self._loop.call_later(READ_INTERVAL, self._listen)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._pipe)
