"""The place in a queue's index from which a claim looks for fresh jobs: behind entries of jobs that were claimed before, which stay in
the index, dead, until a vacuum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MIN_PASSED = 2_000
"""Jobs that were claimed here from a queue, from which on it pays to pass over their entries."""
WHOLE_EVERY = 0.25
MAX_WHOLE_EVERY = 5.0
"""Seconds after which a claim looks at the whole queue again, for jobs that are in their old place again. It is COST times as long
as that look takes, between these two."""
COST = 10.0


class Position(NamedTuple):
    """Looked for first are jobs of a higher priority, and those of this priority that are not older than `age`."""

    priority: int
    age: int


WHOLE = Position(-(2**63), -(2**63))
"""No priority and no age is below."""


@dataclass(slots=True)
class _Cursor:
    position: Position = WHOLE
    passed: int = 0
    valid_until: float = 0.0


class ClaimCursors:
    """One for each queue, at the last priority that was claimed."""

    def __init__(self) -> None:
        self._cursors: dict[str, _Cursor] = {}

    def reset(self) -> None:
        """Look at the whole queues: after a rollback claimed jobs are in their old place."""
        for cursor in self._cursors.values():
            cursor.valid_until = 0.0

    def position(self, queue: str, urgent: int, now: float) -> Position:
        """`now` is in seconds by the monotonic clock. Jobs of priority `urgent` or more are claimed apart."""
        cursor = self._cursors.get(queue)
        if cursor is None or cursor.passed < MIN_PASSED or now >= cursor.valid_until:
            return WHOLE
        return WHOLE if cursor.position.priority >= urgent else cursor.position

    def move(self, queue: str, passed: int, priority: int, age: int) -> None:
        """So many fresh jobs were claimed, the last of this priority and age."""
        cursor = self._cursors.setdefault(queue, _Cursor())
        cursor.position = Position(priority, age)
        cursor.passed += passed

    def looked_at_whole(self, queue: str, seconds: float, now: float) -> None:
        """A claim looked at the whole queue, which took so many seconds."""
        if queue in self._cursors:
            self._cursors[queue].valid_until = now + min(MAX_WHOLE_EVERY, max(WHOLE_EVERY, COST * seconds))
