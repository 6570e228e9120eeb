"""The reports of an async worker about its event loop, in lines between its heartbeats: a job may have written them as well.

["blocks", job, milliseconds]    the loop is blocked; job is null if it is not known by which one
["turns"]                        it is not blocked any more
["read", orders]                 it has read so many orders to cancel a task
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import orjson

BLOCKS, READ = "blocks", "read"
TURNS = b'["turns"]\n'
MAX_LINE = 100  # bytes


class Blocked(NamedTuple):
    """`since` is monotonic seconds."""

    job_id: int | None
    since: float


def encode_blocks(job_id: int | None, seconds: float) -> bytes:
    return orjson.dumps([BLOCKS, job_id, int(seconds * 1000)]) + b"\n"


def encode_read(orders: int) -> bytes:
    return orjson.dumps([READ, orders]) + b"\n"


class LoopState:
    """The last reports of one worker. `now` is monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.blocked: Blocked | None = None
        self.read_at: dict[int, float] = {}
        """When the orders to cancel the tasks that still run were read, by frame."""
        self._unread: dict[int, int] = {}  # the numbers of orders, by frame
        self.ask: Callable[[], object] = lambda: None
        """Make the worker report a job that blocks its loop: its thread may wait for the interpreter."""
        self._now = now
        self._begun = now()
        self._rest = b""

    def order_sent(self, frame: int, number: int) -> None:
        """Note that the task of this frame is to be cancelled, by the order with this number."""
        self._unread[frame] = number

    def task_ended(self, frame: int) -> None:
        self._unread.pop(frame, None)
        self.read_at.pop(frame, None)

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
                case ["read", int(orders)]:
                    read = [frame for frame, number in self._unread.items() if number <= orders]
                    for frame in read:
                        del self._unread[frame]
                    self.read_at.update(dict.fromkeys(read, self._now()))
                case _:
                    return False
        except ValueError:
            return False
        return True
