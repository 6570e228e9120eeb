"""The position in a queue's index from which a claim looks for fresh jobs: behind the entries of claimed jobs, which stay in the
index until a vacuum.

The server vacuums once a minute at most, in which a million jobs may pass, and not at all while an old transaction is open. Then a
claim without a cursor takes fifteen times as long as the first one, and with the old transaction hundreds of times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

MIN_PASSED = 2_000
"""The number of jobs claimed here from the queues of a claim, from which on it is worthwhile to skip their entries."""
WHOLE_EVERY = 0.25
MAX_WHOLE_EVERY = 2.0
"""The least and the most seconds until a claim looks at the whole queue again, since jobs may be before the position. Between
these limits it is COST times the duration of the last such look."""
COST = 10.0
MAX_QUEUES = 1_000
"""With more, the cursors of all are forgotten, which costs only time."""


class Position(NamedTuple):
    """A position in the index: a claim looks first for jobs of a higher priority, and of this priority from `age` on."""

    priority: int
    age: int


WHOLE = Position(-(2**63), -(2**63))
"""The position for a look at the whole queue: every priority is higher."""


@dataclass(slots=True)
class _Cursor:
    last: Position
    """Of the last job that was claimed."""
    position: Position = WHOLE
    passed: int = 0
    """Jobs that were claimed since it moved."""
    valid_until: float = 0.0


class ClaimCursors:
    """The cursor of each queue, at the last priority that was claimed. It is set to the first job that is ready, which may be locked by
    another session: that session may claim it, or leave it. So no job is skipped that was ready at that time."""

    def __init__(self) -> None:
        self._cursors: dict[str, _Cursor] = {}

    def reset(self) -> None:
        """Look at whole queues next: a rollback has made claimed jobs ready again."""
        for cursor in self._cursors.values():
            cursor.valid_until = 0.0

    def position(self, queue: str, urgent: int, now: float) -> Position:
        """Return the position for a claim at `now` (monotonic seconds). Jobs of priority `urgent` or more are claimed apart."""
        cursor = self._cursors.get(queue)
        if cursor is None or now >= cursor.valid_until or cursor.position.priority >= urgent:
            return WHOLE
        return cursor.position

    def claimed(self, queue: str, n: int, last: Position) -> None:
        """Note that `n` fresh jobs were claimed. If the last was before the cursor, there may be more like it."""
        cursor = self._cursors.get(queue)
        if cursor is None:
            if len(self._cursors) >= MAX_QUEUES:
                self._cursors.clear()
            cursor = self._cursors[queue] = _Cursor(last)
        cursor.last = last
        cursor.passed += n
        if last.priority == cursor.position.priority:
            cursor.position = min(cursor.position, last)

    def to_move(self, queues: Iterable[str]) -> dict[str, Position]:
        """Return where to look for the first ready jobs of these queues; nothing if too few were claimed to move the cursors."""
        found = {queue: cursor for queue in queues if (cursor := self._cursors.get(queue)) and cursor.passed}
        if sum([cursor.passed for cursor in found.values()]) < MIN_PASSED:
            return {}
        return {
            queue: cursor.position
            if cursor.last.priority == cursor.position.priority
            else Position(cursor.last.priority, WHOLE.age)
            for queue, cursor in found.items()
        }

    def move(self, queue: str, first: Position | None) -> None:
        """Move to the first ready job; None if no job of the last priority is ready there."""
        cursor = self._cursors[queue]
        cursor.position = first or cursor.last
        cursor.passed = 0

    def looked_at_whole(self, queue: str, seconds: float, now: float) -> None:
        """Note that a claim has looked at the whole queue, and took so many seconds."""
        if queue in self._cursors:
            self._cursors[queue].valid_until = now + min(MAX_WHOLE_EVERY, max(WHOLE_EVERY, COST * seconds))
