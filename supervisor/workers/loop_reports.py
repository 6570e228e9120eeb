"""The reports of an async worker about its event loop, in lines between its heartbeats: a job may have written them as well.

["blocks", job, milliseconds]    the loop is blocked; job is null if it is not known by which one
["turns"]                        it is not blocked any more
["cancel", frame]                it has read the order to cancel the task of this frame
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import orjson

BLOCKS, READ = "blocks", "cancel"
TURNS = b'["turns"]\n'
MAX_LINE = 100  # bytes


class Blocked(NamedTuple):
    """`since` is monotonic seconds."""

    job_id: int | None
    since: float


def encode_blocks(job_id: int | None, seconds: float) -> bytes:
    return orjson.dumps([BLOCKS, job_id, int(seconds * 1000)]) + b"\n"


def encode_read(frame: int) -> bytes:
    return orjson.dumps([READ, frame]) + b"\n"


class LoopState:
    """The last reports of one worker. `now` is monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.blocked: Blocked | None = None
        self.orders: dict[int, float | None] = {}
        """The orders to cancel that were sent, by frame: when each was read, if it was."""
        self.ask: Callable[[], object] = lambda: None
        """Make the worker report a job that blocks its loop: its thread may wait for the interpreter."""
        self._now = now
        self._begun = now()
        self._rest = b""

    def receive(self, data: bytes) -> str | None:
        """Note the reports in `data`, of which the heartbeats were taken out. Return what is wrong with it, or None."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not all(map(self._note, lines)) or len(self._rest) > MAX_LINE:
            return f"expected heartbeats or reports about its loop, got {data[:80]!r}"
        return None

    def _note(self, line: bytes) -> bool:
        """Return whether the line is a report."""
        try:
            match orjson.loads(line):
                case ["turns"]:
                    self.blocked = None
                case ["blocks", int() | None as job_id, int(milliseconds)]:
                    since = self._now() - milliseconds / 1000
                    self.blocked = Blocked(job_id, max(self._begun, min(since, self._now())))
                case ["cancel", int(frame)]:
                    if frame in self.orders:
                        self.orders[frame] = self._now()
                case _:
                    return False
        except ValueError:
            return False
        return True
