"""Queries to the store of a supervisor that differ from those of a memory store: some records are no jobs yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from supervisor.events import MAX_COUNTED
from supervisor.stores.kafka.partitions import Record
from supervisor.stores.kafka.state import KafkaState
from supervisor.stores.memory.ownership import Ownership
from supervisor.stores.memory.queries import Queries


class KafkaQueries(Queries):
    """`joined` is whether the group has given partitions."""

    def __init__(self, state: KafkaState, owner: Ownership, joined: Callable[[], bool]) -> None:
        super().__init__(state, owner)
        self._assigned, self._joined = state, joined

    def _waiting(self) -> Iterator[Record]:
        """Yield the records that wait for another of their line."""
        jobs = self._assigned.jobs
        return (record for record in self._assigned.assignment.records.values() if record.id not in jobs)

    def stats(self) -> dict[str, Any]:
        with self._assigned.lock:
            found, waiting = super().stats(), Counter(record.partition.topic for record in self._waiting())
            for row in found["queues"]:
                row["queue_size"] += waiting[row["queue"]]
            return found

    def ended(self, ids: Sequence[int]) -> list[int]:
        with self._assigned.lock:
            waiting = {record.id for record in self._waiting()}
            return [id for id in super().ended(ids) if id not in waiting]

    def remaining(
        self,
        served: frozenset[str] | None,
        latest: float | None,
        most: int = MAX_COUNTED,
        handlers: Collection[str] | None = None,
    ) -> dict[str, int]:
        """A partition that was not read to its end counts as one ready job, as does a group that has not given partitions yet."""
        with self._assigned.lock:
            left = Counter(super().remaining(served, latest, most, handlers))
            unread = [it.topic for it in self._assigned.assignment.partitions.values() if not it.at_end]
            topics = [*unread, *(record.partition.topic for record in self._waiting())]
            paused = self._assigned.paused
            left["ready"] += sum((served is None or topic in served) and topic not in paused for topic in topics)
            left["ready"] += not self._joined()
            return {kind: n for kind, n in left.items() if n}
