"""In what parts a sink is offered its letters, when some may be bad, or the sink itself down."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from supervisor.stores.records import DeadLetter

FRUITLESS_AT_FIRST = 3
MAX_FRUITLESS = 12
"""Parts in a row of which nothing is accepted: then it is the sink. At first the whole and its halves tell that from one bad
letter; of a sink that has accepted some, more may be bad in a row."""


class BatchSplitter:
    """All at once; a part that makes the sink raise is halved until the bad letter stands alone. After `failures` of the
    sink it begins with fewer and fewer, so that even among many bad letters the good ones are found."""

    def __init__(self, dead_letters: Sequence[DeadLetter], failures: int) -> None:
        self._dead_letters = dead_letters
        self._ahead = dead_letters
        self._size = max(1, len(dead_letters) >> failures)
        self._halves: deque[Sequence[DeadLetter]] = deque()
        self._fruitless = 0
        self.offered: set[int] = set()
        self.accepted: set[int] = set()
        self.error = "not accepted"

    def next(self) -> Sequence[DeadLetter]:
        """Nothing, if all were offered or it is the sink."""
        if self._fruitless >= (MAX_FRUITLESS if self.accepted else FRUITLESS_AT_FIRST):
            return ()
        if self._halves:
            return self._halves.popleft()
        part, self._ahead = self._ahead[: self._size], self._ahead[self._size :]
        return part

    def note(self, part: Sequence[DeadLetter], accepted: frozenset[int]) -> list[DeadLetter]:
        """Gives those of the part that are accepted."""
        taken = [dead_letter for dead_letter in part if dead_letter.id in accepted]
        self.offered.update(dead_letter.id for dead_letter in part)
        self.accepted.update(dead_letter.id for dead_letter in taken)
        self._fruitless = 0 if taken else self._fruitless + 1
        if taken:
            self._size *= 2
        return taken

    def note_raised(self, part: Sequence[DeadLetter], error: str) -> None:
        self.error = error
        self.note(part, frozenset())
        if len(part) > 1:
            middle = len(part) // 2
            self._halves += (part[:middle], part[middle:])

    @property
    def refused(self) -> list[DeadLetter]:
        """Offered, and not accepted."""
        return [dead_letter for dead_letter in self.left if dead_letter.id in self.offered]

    @property
    def left(self) -> list[DeadLetter]:
        return [dead_letter for dead_letter in self._dead_letters if dead_letter.id not in self.accepted]
