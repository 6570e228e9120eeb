"""Queries to the store of a supervisor that differ from those of other stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from supervisor.events import MAX_COUNTED
from supervisor.stores.kafka.state import KafkaState
from supervisor.stores.memory.queries import Queries


class Remaining:
    """Counts the work that --drain waits for: also what was not read yet. `joined` is whether the group has given partitions."""

    def __init__(self, state: KafkaState, queries: Queries, joined: Callable[[], bool]) -> None:
        self._state, self._queries, self._joined = state, queries, joined

    def remaining(
        self,
        served: frozenset[str] | None,
        latest: float | None,
        most: int = MAX_COUNTED,
        handlers: Collection[str] | None = None,
    ) -> dict[str, int]:
        """A partition that was not read to its end counts as one ready job, as does a group that has not given partitions yet."""
        with self._state.lock:
            left = Counter(self._queries.remaining(served, latest, most, handlers))
            assignment, paused = self._state.assignment, self._state.paused
            unread = [
                partition
                for partition in assignment.partitions.values()
                if not partition.at_end
                and (served is None or partition.topic in served)
                and partition.topic not in paused
            ]
            waiting = sum(1 for record in assignment.records.values() if record.id not in self._state.jobs)
            left["ready"] += len(unread) + waiting + (not self._joined())
            return {kind: n for kind, n in left.items() if n}
