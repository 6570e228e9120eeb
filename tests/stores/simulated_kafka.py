"""Topics in memory, and a Kafka store that is fed from them by the test instead of by a client's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from supervisor.config.kafka import KafkaSettings
from supervisor.stores.kafka.ids import Place, job_id, topic_numbers
from supervisor.stores.kafka.offsets import Offsets, done_ranges
from supervisor.stores.kafka.partitions import Partition, Record, line_of
from supervisor.stores.kafka.store import KafkaStore
from supervisor.stores.kafka.values import RawHeaders
from supervisor.stores.sinks import Sinks

PartitionName = tuple[str, int]
"""The topic and the number of the partition in it."""


class Message(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    headers: RawHeaders
    timestamp: int | None


class Log:
    """The records of each partition, and what the group has committed."""

    def __init__(self) -> None:
        self.messages: dict[PartitionName, list[Message]] = {}
        self.ends: dict[PartitionName, int] = {}
        self.committed: dict[PartitionName, tuple[int, str]] = {}

    def append(
        self, name: PartitionName, key: bytes | None = None, value: bytes | None = b"{}", headers: RawHeaders = (),
        *, timestamp: int | None = None, gap: int = 0,
    ) -> int:  # fmt: skip
        """Append a record behind `gap` offsets without one, as transactions and compaction leave them. Return its offset."""
        offset = self.ends.get(name, 0) + gap
        self.messages.setdefault(name, []).append(Message(offset, key, value, headers, timestamp))
        self.ends[name] = offset + 1
        return offset

    def from_offset(self, name: PartitionName, offset: int) -> Iterator[Message]:
        return (message for message in self.messages.get(name, ()) if message.offset >= offset)


def kafka_settings(topics: Mapping[str, str | None], **options: Any) -> KafkaSettings:
    return KafkaSettings(bootstrap="localhost:1", group="group", topics=topics, **options)


class FedStore(KafkaStore):
    """Does with records what `GroupConsumer` does, when the test calls it."""

    def __init__(
        self, log: Log, settings: KafkaSettings, clock: Callable[[], float], epochs: Iterator[int] | None = None
    ) -> None:
        super().__init__(settings, clock)
        self.log, self.numbers = log, topic_numbers(settings.topics)
        self._epochs = count(1) if epochs is None else epochs

    def join(self, owner: str, host: str, pid: int, sinks: Sinks = frozenset()) -> int | None:
        return self._owner.join(owner, host, pid, sinks)

    @property
    def partitions(self) -> dict[PartitionName, Partition]:
        return self.state.assignment.partitions

    def assign(self, *names: PartitionName) -> None:
        for name in names:
            committed, metadata = self.log.committed.get(name, (0, ""))
            offsets = Offsets(committed, done_ranges(committed, metadata))
            self.partitions[name] = Partition(*name, next(self._epochs), offsets, committed)

    def fetch(self, name: PartitionName, limit: int = 1000) -> int:
        """Read up to `limit` messages, or to the end. Return how many records are to be run."""
        partition = self.partitions[name]
        messages = list(self.log.from_offset(name, partition.offsets.position or 0))
        records = [
            self.record(partition, message) for message in messages[:limit] if partition.offsets.fetched(message.offset)
        ]
        partition.changed = partition.changed or len(records) < len(messages[:limit])
        if limit >= len(messages):
            partition.offsets.reached_end(self.log.ends.get(name, 0))
            partition.at_end = partition.changed = True
        with self.state.lock:
            self.state.add_records(records)
        return len(records)

    def record(self, partition: Partition, message: Message) -> Record:
        offset, key, value, headers, timestamp = message
        id = job_id(Place(self.numbers[partition.topic], partition.number, offset))
        line = line_of(self._settings.ordering, partition, key)
        return Record(id, partition, offset, timestamp, key, value, headers, line)

    def commit(self, *names: PartitionName) -> None:
        for name in names or self.partitions:
            partition = self.partitions[name]
            if partition.changed and (offset := partition.offsets.committable) is not None:
                text, complete = partition.offsets.metadata()
                partition.committed, partition.changed, partition.metadata_full = offset, False, not complete
                self.log.committed[name] = offset, text

    def revoke(self, *names: PartitionName, timeout: float = 0.0) -> None:
        partitions = self.named(names)
        self.state.give_up(partitions, timeout)
        self.commit(*names)
        self.state.drop(partitions)

    def lose(self, *names: PartitionName) -> int:
        return self.state.drop(self.named(names))

    def named(self, names: Sequence[PartitionName]) -> list[Partition]:
        return [self.partitions[name] for name in names]
