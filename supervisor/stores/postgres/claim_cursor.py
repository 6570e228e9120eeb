"""Where the fresh jobs of a queue begin, behind what was claimed before and is dead in the index until a vacuum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PASSED_MANY = 2_000
"""Jobs claimed here from a queue, from which on its dead entries are worth to be passed over."""
LOOKED_EVERY = 0.25
LOOKED_SELDOM = 5.0
"""Seconds after which a claim looks at the whole line again, for what has come back to its place; longer if that takes long."""
COST = 10.0


@dataclass(slots=True)
class ClaimCursor:
    priority: int = 0
    age: int = 0
    passed: int = 0
    looked_until: float = 0.0


class ClaimCursors:
    """Only of one priority, the last that was claimed from: what has another is looked for on both sides of it."""

    def __init__(self) -> None:
        self._claim_cursors: dict[str, ClaimCursor] = {}

    def forget(self) -> None:
        """What was claimed may be back in its place."""
        for claim_cursor in self._claim_cursors.values():
            claim_cursor.looked_until = 0.0

    def of(self, queue: str, urgent: int, now: float) -> tuple[int, int] | None:
        """(priority, age) from which to look, or None: at the whole line."""
        claim_cursor = self._claim_cursors.get(queue)
        if (
            claim_cursor is None
            or claim_cursor.passed < PASSED_MANY
            or now >= claim_cursor.looked_until
            or claim_cursor.priority >= urgent
        ):
            return None
        return claim_cursor.priority, claim_cursor.age

    def note(self, queue: str, claimed: Sequence[Sequence[Any]]) -> None:
        """Rows of fresh jobs that were claimed, each ending in its age."""
        if claimed:
            claim_cursor = self._claim_cursors.setdefault(queue, ClaimCursor())
            claim_cursor.priority, claim_cursor.age = claimed[-1][7], claimed[-1][-1]
            claim_cursor.passed += len(claimed)

    def looked(self, queue: str, took: float, now: float) -> None:
        """At the whole line, which took so many seconds."""
        claim_cursor = self._claim_cursors.get(queue)
        if claim_cursor is not None:
            claim_cursor.looked_until = now + min(LOOKED_SELDOM, max(LOOKED_EVERY, COST * took))
