"""The ready jobs that claims have left in the store, as last seen."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from supervisor.stores.records import Waiting


class LeftInStore:
    """The numbers by queue. If a look shows a part of the queues only, those of the others are kept."""

    def __init__(self) -> None:
        self.by_queue: Mapping[str, Waiting] = {}
        self._kept: dict[str, Waiting] | None = None  # the same mapping, once a look has shown a part
        self._names: list[str] = []  # of the queues that are kept, sorted

    def ready(self, queue: str) -> int:
        left = self.by_queue.get(queue)
        return left.fresh + left.retries if left else 0

    def of(self, queues: Iterable[str] | None = None) -> dict[str, Waiting]:
        """Return the numbers of these queues, or of all, without the queues that have none."""
        return {
            queue: self.by_queue[queue] for queue in (self.by_queue if queues is None else queues) if self.ready(queue)
        }

    def note(self, left: Mapping[str, Waiting], behind: str | None) -> list[str]:
        """Note the numbers that a claim left. If they are not those of all queues, but of the ones from `behind` to the last of
        them, return the queues between these that are known and have no jobs any more."""
        if behind is None or not left:
            self.by_queue, self._kept = left, None
            return []
        if self._kept is None:
            self.by_queue = self._kept = dict(self.by_queue)
            self._names = sorted(self._kept)
        last, gone = next(reversed([*left])), []
        for low, high in [(behind, last)] if behind < last else [("", last), (behind, None)]:
            start = bisect_right(self._names, low)
            end = len(self._names) if high is None else bisect_right(self._names, high)
            gone += [queue for queue in self._names[start:end] if queue not in left]
            self._names[start:end] = sorted(queue for queue in left if low < queue and (high is None or queue <= high))
        for queue in gone:
            del self._kept[queue]
        self._kept.update(left)
        return gone
