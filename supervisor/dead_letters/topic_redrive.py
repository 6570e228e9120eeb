"""Send the dead letters of a topic to where they came from. An offset is committed once the brokers have acknowledged all before it,
so nothing is lost at any end of this process; a few may be sent twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from supervisor.dead_letters.kafka_headers import REFERENCE, SOURCE, split
from supervisor.dead_letters.topic_reader import TopicReader
from supervisor.errors import StoreError, StoreUnavailable
from supervisor.kafka.client import Publisher, Record, Refused, headers_of

if TYPE_CHECKING:
    from confluent_kafka import Message

BATCH = 200
"""The messages that are published and committed at once."""


class Cluster(NamedTuple):
    """The brokers, the settings of librdkafka, and the group that commits how far a topic was redriven."""

    bootstrap: str
    kafka: Mapping[str, Any]
    group: str


@dataclass
class Redriven:
    """The number of records by the topic that they were sent to, and the dead letters that can't be sent to any, each with the reason.
    `error` has ended the redrive before the end of the topic."""

    sent: Counter[str] = field(default_factory=Counter)
    left: list[str] = field(default_factory=list)
    error: StoreError | None = None


class TopicRedrive:
    """One redrive of the dead letters of `topic`, to the topic `to` or else each to its source, of at most `limit` records."""

    def __init__(
        self, reader: TopicReader, publisher: Publisher | None, topic: str, to: str | None = None, limit: int | None = None
    ) -> None:  # fmt: skip
        """Without a publisher it only counts: nothing is sent or committed."""
        self._reader, self._publisher = reader, publisher
        self._topic, self._to, self._limit = topic, to, limit
        self._partitions: dict[str, int] = {}
        self.result = Redriven()

    def run(self) -> Redriven:
        """Redrive until the end that the topic has now, until the limit, or until an error. What was sent before it is committed."""
        try:
            if not self._reader.partitions(self._topic):
                raise StoreError(f"topic {self._topic} does not exist")
            for messages in self._reader.messages(self._topic, self._batch()):
                self._redrive(messages)
                if self._batch() == 0:
                    break
        except StoreError as error:
            self.result.error = error
        return self.result

    def _batch(self) -> int:
        return BATCH if self._limit is None else min(BATCH, self._limit - self.result.sent.total())

    def _redrive(self, messages: Sequence[Message]) -> None:
        """Send as many of the messages as the limit allows, and commit the offsets before the first one that is not sent."""
        batch = _Batch()
        problem: StoreError | None = None
        for message in messages:
            if len(batch.records) == self._batch():
                break
            try:
                self._plan(message, batch)
            except StoreError as error:
                problem = error
                break
        refused = self._publisher.publish(batch.records) if self._publisher and batch.records else {}
        self.result.sent.update(each.topic for index, each in enumerate(batch.records) if index not in refused)
        self.result.left += batch.left
        if self._publisher is not None:
            self._reader.commit(self._topic, batch.done(refused))
        if refused:
            raise _error(next(iter(refused.values())))
        if problem is not None:
            raise problem

    def _plan(self, message: Message, batch: _Batch) -> None:
        """Add the record to send for a message to the batch, or the reason why there is none."""
        if (own := headers_of(message)) is None:
            batch.leave(message, "its headers can't be read: the name of one is not UTF-8")
            return
        headers, added = split(own)
        source = _text(added.get(SOURCE[0]))
        if added and source is None:
            key = _text(message.key()) or "ID"
            batch.leave(message, f"it is job {key} of another store; run it again there: supervisor dlq redrive {key}")
            return
        to = self._to or source
        if to is None:
            raise StoreError(f"{_place(message)}: it has no header {SOURCE[0]}; name the topic with --to TOPIC")
        record = Record(to, message.key(), message.value(), headers)
        if REFERENCE in added:
            original = self._original(message)
            if original is None:
                batch.leave(
                    message, f"its record at {_text(added[REFERENCE])}, which has the value, is no longer there"
                )
                return
            record = record._replace(value=original.value())
        batch.send(message, record._replace(partition=self._partition(added) if to == source else -1))

    def _original(self, message: Message) -> Message | None:
        """Return the record that a dead letter refers to, if it is still in its topic."""
        try:
            place = orjson.loads(message.value() or b"")
            original = self._reader.message_at(str(place["topic"]), int(place["partition"]), int(place["offset"]))
        except (ValueError, TypeError, KeyError):
            return None
        return original if original is not None and original.key() == message.key() else None

    def _partition(self, added: Mapping[str, bytes | None]) -> int:
        """Return the partition that a record came from, in which it follows the others of its key, or -1 if it is gone."""
        topic, partition = _text(added[SOURCE[0]]) or "", _text(added[SOURCE[1]]) or ""
        if topic not in self._partitions:
            self._partitions[topic] = self._reader.partitions(topic)
        return int(partition) if partition.isdecimal() and int(partition) < self._partitions[topic] else -1


class _Batch:
    """The messages of one batch: a record to send for each, or nothing."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.left: list[str] = []
        self._messages: list[tuple[int, int, int | None]] = []

    def send(self, message: Message, record: Record) -> None:
        self._note(message, len(self.records))
        self.records.append(record)

    def leave(self, message: Message, reason: str) -> None:
        self._note(message, None)
        self.left.append(f"{_place(message)}: {reason}")

    def _note(self, message: Message, index: int | None) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        self._messages.append((partition, offset, index))

    def done(self, refused: Mapping[int, Refused]) -> dict[int, int]:
        """Return the next offset of each partition: that of its first record that was refused, else the one behind the last."""
        ends: dict[int, int] = {}
        stopped: set[int] = set()
        for partition, offset, index in self._messages:
            if index in refused:
                stopped.add(partition)
            if partition not in stopped:
                ends[partition] = offset + 1
        return ends


@contextmanager
def opened_redrive(
    cluster: Cluster, topic: str, to: str | None, limit: int | None, timeout: float, *, dry_run: bool
) -> Iterator[TopicRedrive]:
    """Open the clients of a redrive, and close them at the end. Raises StoreError if the settings can't be used."""
    kafka = {"log_level": 0, **cluster.kafka}
    reader = TopicReader(cluster.bootstrap, kafka, cluster.group, timeout)
    publisher: Publisher | None = None
    try:
        try:
            publisher = None if dry_run else Publisher(cluster.bootstrap, kafka)
        except ValueError as error:
            raise StoreError(str(error)) from None
        yield TopicRedrive(reader, publisher, topic, to, limit)
    finally:
        if publisher is not None:
            publisher.close()
        reader.close()


def _error(refused: Refused) -> StoreError:
    return StoreUnavailable(refused.text) if refused.unavailable else StoreError(refused.text)


def _place(message: Message) -> str:
    return f"partition {message.partition()}, offset {message.offset()}"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
