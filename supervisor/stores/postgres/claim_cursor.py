"""The position in a queue's index from which a claim looks for fresh jobs: behind the entries of claimed jobs, which stay in the
index until a vacuum, and would slow down each claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MIN_PASSED = 2_000
"""The number of jobs claimed here from a queue, from which on it is worthwhile to skip their entries."""
WHOLE_EVERY = 0.25
MAX_WHOLE_EVERY = 5.0
"""The least and the most seconds until a claim looks at the whole queue again, since jobs may be before the position. Between
these limits it is COST times the duration of the last such look."""
COST = 10.0


class Position(NamedTuple):
    """A position in the index: a claim looks first for jobs of a higher priority, and of this priority from `age` on."""

    priority: int
    age: int


WHOLE = Position(-(2**63), -(2**63))
"""The position for a look at the whole queue: every priority is higher."""


@dataclass(slots=True)
class _Cursor:
    position: Position = WHOLE
    passed: int = 0
    valid_until: float = 0.0


class ClaimCursors:
    """The cursor of each queue, at the last job that was claimed."""

    def __init__(self) -> None:
        self._cursors: dict[str, _Cursor] = {}

    def reset(self) -> None:
        """Look at whole queues next: a rollback has made claimed jobs ready again."""
        for cursor in self._cursors.values():
            cursor.valid_until = 0.0

    def position(self, queue: str, urgent: int, now: float) -> Position:
        """Return the position for a claim at `now` (monotonic seconds). Jobs of priority `urgent` or more are claimed apart."""
        cursor = self._cursors.get(queue)
        if cursor is None or cursor.passed < MIN_PASSED or now >= cursor.valid_until:
            return WHOLE
        return WHOLE if cursor.position.priority >= urgent else cursor.position

    def move(self, queue: str, passed: int, priority: int, age: int) -> None:
        """Move behind the `passed` fresh jobs that were claimed, the last of which has this priority and age."""
        cursor = self._cursors.setdefault(queue, _Cursor())
        cursor.position = Position(priority, age)
        cursor.passed += passed

    def looked_at_whole(self, queue: str, seconds: float, now: float) -> None:
        """Note that a claim has looked at the whole queue, and took so many seconds."""
        if queue in self._cursors:
            self._cursors[queue].valid_until = now + min(MAX_WHOLE_EVERY, max(WHOLE_EVERY, COST * seconds))
