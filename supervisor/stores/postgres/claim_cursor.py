"""The place in a queue's index from which a claim looks for fresh jobs: behind entries of jobs that were claimed before, which stay in
the index, dead, until a vacuum.

The server vacuums once a minute at most, in which a million jobs may pass, and not at all while an old transaction is open. Then a
claim without a cursor takes fifteen times as long as the first one, and with the old transaction hundreds of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MIN_PASSED = 2_000
"""Jobs that were claimed here from a queue, from which on it pays to pass over their entries."""
WHOLE_EVERY = 0.25
MAX_WHOLE_EVERY = 2.0
"""Seconds after which a claim looks at the whole queue again, for jobs that are in their old place again. It is COST times as long
as that look takes, between these two."""
COST = 10.0
MAX_QUEUES = 1_000
"""With more, the cursors of all are forgotten, which costs only time."""


class Position(NamedTuple):
    """Looked for first are jobs of a higher priority, and those of this priority that are not older than `age`."""

    priority: int
    age: int


WHOLE = Position(-(2**63), -(2**63))
"""No priority and no age is below."""


@dataclass(slots=True)
class _Cursor:
    last: Position
    """Of the last job that was claimed."""
    position: Position = WHOLE
    passed: int = 0
    """Jobs that were claimed since it moved."""
    valid_until: float = 0.0


class ClaimCursors:
    """One for each queue, at the last priority that was claimed. Its new place is the first job that is ready, which may be locked by
    another session: that one may claim it, or leave it. So no job is passed over that was ready at that time."""

    def __init__(self) -> None:
        self._cursors: dict[str, _Cursor] = {}

    def reset(self) -> None:
        """Look at the whole queues: after a rollback claimed jobs are in their old place."""
        for cursor in self._cursors.values():
            cursor.valid_until = 0.0

    def position(self, queue: str, urgent: int, now: float) -> Position:
        """`now` is in seconds by the monotonic clock. Jobs of priority `urgent` or more are claimed apart."""
        cursor = self._cursors.get(queue)
        if cursor is None or now >= cursor.valid_until or cursor.position.priority >= urgent:
            return WHOLE
        return cursor.position

    def claimed(self, queue: str, n: int, last: Position) -> None:
        """So many fresh jobs were claimed. If the last was in front of the cursor, there may be more like it."""
        cursor = self._cursors.get(queue)
        if cursor is None:
            if len(self._cursors) >= MAX_QUEUES:
                self._cursors.clear()
            cursor = self._cursors[queue] = _Cursor(last)
        cursor.last = last
        cursor.passed += n
        if last.priority == cursor.position.priority:
            cursor.position = min(cursor.position, last)

    def to_move(self, queue: str) -> Position | None:
        """Where to look for the first ready job, if enough have been claimed to move the cursor there."""
        cursor = self._cursors.get(queue)
        if cursor is None or cursor.passed < MIN_PASSED:
            return None
        if cursor.last.priority == cursor.position.priority:
            return cursor.position
        return Position(cursor.last.priority, WHOLE.age)

    def move(self, queue: str, first: Position | None) -> None:
        """None: no job of the last priority is ready there."""
        cursor = self._cursors[queue]
        cursor.position = first or cursor.last
        cursor.passed = 0

    def looked_at_whole(self, queue: str, seconds: float, now: float) -> None:
        """A claim looked at the whole queue, which took so many seconds."""
        if queue in self._cursors:
            self._cursors[queue].valid_until = now + min(MAX_WHOLE_EVERY, max(WHOLE_EVERY, COST * seconds))
