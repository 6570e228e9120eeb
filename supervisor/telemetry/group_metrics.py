"""The metrics of the consumer group of a Kafka store. Without one they have no value, and the counters are 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from supervisor.kafka.events import (
    CommitFailed,
    GroupFigures,
    PartitionFigures,
    PartitionsAssigned,
    PartitionsRevoked,
)

_GAUGES: Mapping[str, Callable[[PartitionFigures], float | None]] = {
    "kafka_lag": lambda it: it.lag,
    "kafka_committed_offset": lambda it: it.committed,
    "kafka_buffered_records": lambda it: it.undone,
    "kafka_undone_since_seconds": lambda it: it.held_for or 0.0,
}
"""Each by topic and number of the partition."""


class GroupMetrics:
    """A partition that was given up has no values any more."""

    def __init__(self) -> None:
        self.counters: Mapping[type[Any], Callable[[Any], None]] = {
            PartitionsAssigned: self._assigned,
            PartitionsRevoked: self._revoked,
            CommitFailed: self._commit_failed,
            GroupFigures: self._figures,
        }
        self._rebalances = self._commit_failures = 0
        self._partitions: Mapping[str, PartitionFigures] = {}

    def snapshot(self) -> dict[str, Any]:
        return {
            **{name: self._by_partition(value) for name, value in _GAUGES.items()},
            "kafka_commit_failures_total": self._commit_failures,
            "kafka_rebalances_total": self._rebalances,
        }

    def _by_partition(self, value: Callable[[PartitionFigures], float | None]) -> dict[str, dict[str, float | None]]:
        found: dict[str, dict[str, float | None]] = {}
        for name, figures in self._partitions.items():
            topic, _, number = name.rpartition("/")
            found.setdefault(topic, {})[number] = value(figures)
        return found

    def _assigned(self, event: PartitionsAssigned) -> None:
        self._rebalances += 1

    def _revoked(self, event: PartitionsRevoked) -> None:
        self._partitions = {name: it for name, it in self._partitions.items() if name not in event.partitions}

    def _commit_failed(self, event: CommitFailed) -> None:
        self._commit_failures += 1

    def _figures(self, event: GroupFigures) -> None:
        self._partitions = event.partitions
