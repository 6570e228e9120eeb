"""The records of the assigned partitions, from their fetch until their offsets are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from supervisor.stores.kafka.offsets import Offsets
from supervisor.stores.kafka.values import RawHeaders

EPOCH_BITS = 32


@dataclass(eq=False, slots=True)
class Partition:
    """One assignment of a partition of a topic. `epoch` is another one for each assignment: the outcome of a job of an earlier
    one is stale. `leaving` is set while the partition is given up: none of its jobs starts any more."""

    topic: str
    number: int
    epoch: int
    offsets: Offsets = field(default_factory=Offsets)
    committed: int | None = None
    bytes: int = 0
    paused: bool = False
    at_end: bool = False
    leaving: bool = False
    changed: bool = False
    """Whether there may be something to commit."""
    metadata_full: bool = False

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.number}"

    @property
    def token(self) -> int:
        """The fencing token of a job before it is claimed for the first time."""
        return self.epoch << EPOCH_BITS


@dataclass(eq=False, slots=True)
class Record:
    """A fetched record that is not done. `line` is the line of records that run one at a time, or None if it waits for no other."""

    id: int
    partition: Partition
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: RawHeaders
    line: Hashable
    unreadable: bool = False
    """Whether the client can't read its headers: they are missing here."""
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = len(self.key or b"") + len(self.value or b"")
        if self.headers:
            self.bytes += sum(len(it or b"") + len(name) for name, it in self.headers)


class Lines:
    """Lines of records that run one at a time, in the order of their offsets: a record leaves its line when it is done."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[Record]] = {}

    def add(self, record: Record) -> bool:
        """Add the record to its line. Return whether it is the first one, which may run."""
        if record.line is None:
            return True
        waiting = self._waiting.get(record.line)
        if waiting is None:
            self._waiting[record.line] = deque()
            return True
        waiting.append(record)
        return False

    def done(self, record: Record) -> Record | None:
        """Remove the record, which was the first of its line. Return the next one, which may run now."""
        if record.line is None:
            return None
        waiting = self._waiting[record.line]
        if waiting:
            return waiting.popleft()
        del self._waiting[record.line]
        return None

    def drop(self, lines: Iterable[Hashable]) -> None:
        for line in lines:
            self._waiting.pop(line, None)

    def waiting(self) -> Iterator[Record]:
        for waiting in self._waiting.values():
            yield from waiting


def line_of(ordering: str, partition: Partition, key: bytes | None) -> Hashable:
    """Return the line of a record: records without a key are in none unless whole partitions are kept in order."""
    if ordering == "partition":
        return (partition.topic, partition.number)
    if ordering == "unordered" or key is None:
        return None
    return (partition.topic, partition.number, key)


class Assignment:
    """The partitions that this supervisor has, and their records by id."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.records: dict[int, Record] = {}
        self.lines = Lines()
        self._max_records, self._max_bytes = max_records, max_bytes

    def add(self, record: Record) -> bool:
        """Add a fetched record. Return whether it may run now."""
        self.records[record.id] = record
        record.partition.bytes += record.bytes
        return self.lines.add(record)

    def done(self, id: int) -> Record | None:
        """Mark the record as done, if it is one of an assigned partition. Return the next one of its line."""
        record = self.records.pop(id, None)
        if record is None:
            return None
        partition = record.partition
        partition.offsets.done(record.offset)
        partition.changed = True
        partition.bytes -= record.bytes
        return self.lines.done(record)

    def drop(self, partitions: Collection[Partition]) -> list[Record]:
        """Forget the partitions. Return their records that are not done."""
        for partition in partitions:
            if self.partitions.get((partition.topic, partition.number)) is partition:
                del self.partitions[partition.topic, partition.number]
        dropped = [record for record in self.records.values() if record.partition in partitions]
        for record in dropped:
            del self.records[record.id]
        self.lines.drop({record.line for record in dropped if record.line is not None})
        return dropped

    def batch(self, most: int, largest: int) -> int:
        """Return how many messages may be read at once, of which the largest has about so many bytes: all of them may be of one
        partition, and must exceed its share of the buffer by no more than a quarter."""
        share = 4 * max(1, len(self.partitions))
        return max(1, min(most, self._max_records // share, self._max_bytes // share // max(1, largest)))

    def fullness(self, partition: Partition) -> float:
        """Return which part of its share of the buffer a partition uses, or more than 1 if no further record may be fetched."""
        share = max(1, len(self.partitions))
        records = partition.offsets.undone * share / self._max_records
        return max(records, partition.bytes * share / self._max_bytes, 2.0 if partition.metadata_full else 0.0)

    @property
    def figures(self) -> dict[str, Any]:
        """The number of records that are not done by partition."""
        return {partition.name: partition.offsets.undone for partition in self.partitions.values()}
