"""Many jobs to enqueue, kept so that one more costs little: mostly nothing but the payload is its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from supervisor.stores.records import EnqueueRow


class EnqueueBatch(Sequence[EnqueueRow]):
    """Each row is like one of `kinds` but for its payload: `places` says which, `payloads` has the JSON.

    A tuple for each would be more than half of the work of making it, and most of that would go to the garbage collector,
    which passes over all of them again and again.

    `unsure` is the store's, which may have kept them though it could not say so: by that it knows them at the next try.
    """

    __slots__ = ("kinds", "payloads", "places", "unsure")

    def __init__(self, rows: Iterable[EnqueueRow] = ()) -> None:
        self.kinds: list[EnqueueRow] = []
        self.places: list[int] = []
        self.payloads: list[str] = []
        self.unsure: tuple[int, int] | None = None
        for row in rows:
            self.append(row)

    @classmethod
    def of(cls, rows: Iterable[EnqueueRow]) -> EnqueueBatch:
        return rows if isinstance(rows, cls) else cls(rows)

    def append(self, row: EnqueueRow) -> int:
        """Gives the place of its kind."""
        place = self.places[-1] if self.places else 0
        if not self.kinds or not _are_alike(row, self.kinds[place]):
            place = len(self.kinds)
            self.kinds.append(row)
        self.places.append(place)
        self.payloads.append(row.payload)
        return place

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[EnqueueRow]:
        return map(self._row, self.places, self.payloads)

    @overload
    def __getitem__(self, at: int) -> EnqueueRow: ...
    @overload
    def __getitem__(self, at: slice) -> EnqueueBatch: ...
    def __getitem__(self, at: int | slice) -> EnqueueRow | EnqueueBatch:
        if isinstance(at, slice):
            part = EnqueueBatch()
            part.kinds, part.places, part.payloads = self.kinds, self.places[at], self.payloads[at]
            return part
        return self._row(self.places[at], self.payloads[at])

    def _row(self, place: int, payload: str) -> EnqueueRow:
        kind = self.kinds[place]
        return kind if payload is kind.payload else kind._replace(payload=payload)


def _are_alike(one: EnqueueRow, other: EnqueueRow) -> bool:
    return one[0] == other[0] and one[2:] == other[2:]
