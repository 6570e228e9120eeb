"""Read a topic of dead letters from the offsets that a group has committed to the ends that the topic has at the start."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.kafka.client import client_settings, require
from supervisor.kafka.errors import UNREACHABLE, ErrorTexts, is_outage

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

WAIT = 0.5  # seconds of one poll
_END, _NO_MESSAGE = "_PARTITION_EOF", frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_NO_TOPIC = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_OF_MEMBERS = frozenset({"group.instance.id", "auto.offset.reset"})


class TopicReader:
    """A consumer that is no member of its group, so nobody else may use the group meanwhile: each would get all records.

    All methods raise StoreUnavailable if no broker answers within `timeout` seconds, and StoreError if the brokers refuse.
    """

    def __init__(self, bootstrap: str, kafka: Mapping[str, Any], group: str, timeout: float) -> None:
        self._kafka = require()
        self._texts = ErrorTexts(bootstrap, kafka)
        self._timeout = timeout
        self._cause: KafkaError | None = None
        self._settings: dict[str, Any] = {
            **client_settings(bootstrap, {key: value for key, value in kafka.items() if key not in _OF_MEMBERS}),
            "group.id": group, "enable.auto.commit": False, "enable.auto.offset.store": False,
            "enable.partition.eof": True, "error_cb": self._note_error,
        }  # fmt: skip
        self._consumer = self._made("earliest")
        self._single: Consumer | None = None
        self._fetched: set[int] = set()

    def partitions(self, topic: str) -> int:
        """Return how many partitions the topic has: 0 if there is no such topic."""
        with self._explained(topic):
            found = self._consumer.list_topics(topic, self._timeout).topics[topic]
        if found.error is not None and found.error.name() not in _NO_TOPIC:
            self._refuse(found.error, topic)
        return len(found.partitions)

    def messages(self, topic: str, most: int) -> Iterator[list[Message]]:
        """Yield the messages of all partitions in lists of at most `most`; each partition's are in order. The list is empty if there
        was none for a while."""
        ends = self._start(topic)
        got_at = time.monotonic()
        while ends:
            with self._explained(topic):
                got = self._consumer.consume(most, WAIT)
            if not got and time.monotonic() - got_at > self._timeout:
                raise StoreUnavailable(self._texts.unreachable(topic, self._cause))
            got_at = time.monotonic() if got else got_at
            yield list(self._wanted(topic, got, ends))

    def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit the offset of the next message of each partition."""
        wanted = [self._kafka.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        with self._explained(topic):
            committed = self._consumer.commit(offsets=wanted, asynchronous=False) if wanted else ()
        for each in committed:
            if each.error is not None:
                self._refuse(each.error, topic)

    def message_at(self, topic: str, partition: int, offset: int) -> Message | None:
        """Return the message at a place, or None if it is no longer there."""
        single = self._single = self._single or self._made("error")
        with self._explained(topic):
            single.assign([self._kafka.TopicPartition(topic, partition, offset)])
        until = time.monotonic() + self._timeout
        while time.monotonic() < until:
            if (message := single.poll(WAIT)) is None:
                continue
            error = message.error()
            if error is None:
                return message if message.offset() == offset else None
            if error.name() in {_END, *_NO_MESSAGE, *_NO_TOPIC}:
                return None
            if error.name() not in UNREACHABLE:
                self._refuse(error, topic)
        raise StoreUnavailable(self._texts.unreachable(topic, self._cause))

    def close(self) -> None:
        for consumer in (self._consumer, self._single):
            if consumer is not None:
                consumer.close()

    def _made(self, at_no_offset: str) -> Consumer:
        try:
            return self._kafka.Consumer({**self._settings, "auto.offset.reset": at_no_offset})  # type: ignore[no-any-return]
        except self._kafka.KafkaException as error:
            raise StoreError(self._texts.setting(error.args[0])) from None

    def _start(self, topic: str) -> dict[int, int]:
        """Begin at the committed offsets, else at the first ones, and return the end of each partition as the brokers list it."""
        place, consumer = self._kafka.TopicPartition, self._consumer
        all_places = [place(topic, partition) for partition in range(self.partitions(topic))]
        with self._explained(topic):
            committed = consumer.committed(all_places, self._timeout)
            ends = {each.partition: consumer.get_watermark_offsets(each, self._timeout)[1] for each in all_places}
            for each in committed:
                if each.error is not None:
                    self._refuse(each.error, topic)
                each.offset = each.offset if each.offset >= 0 else self._kafka.OFFSET_BEGINNING
            consumer.assign(committed)
        self._fetched.clear()
        return ends

    def _wanted(self, topic: str, got: list[Message], ends: dict[int, int]) -> Iterator[Message]:
        """Yield the messages before the ends, and remove the partitions that have been read."""
        for message in got:
            partition, offset, error = message.partition(), message.offset(), message.error()
            if error is not None:
                if error.name() == _END and partition is not None:
                    ends.pop(partition, None)
                elif error.name() not in UNREACHABLE:
                    self._refuse(error, topic)
                continue
            if partition not in ends or offset is None:
                continue
            self._correct(topic, partition, ends)
            if offset < ends[partition]:
                yield message
            if offset + 1 >= ends[partition]:
                del ends[partition]
                self._consumer.pause([self._kafka.TopicPartition(topic, partition)])

    def _correct(self, topic: str, partition: int, ends: dict[int, int]) -> None:
        """Take the end from the first fetch of a partition: some brokers list too low a one."""
        if partition not in self._fetched:
            self._fetched.add(partition)
            place = self._kafka.TopicPartition(topic, partition)
            ends[partition] = max(ends[partition], self._consumer.get_watermark_offsets(place, cached=True)[1])

    def _note_error(self, error: KafkaError) -> None:
        if error.name() != "_ALL_BROKERS_DOWN":
            self._cause = error

    @contextmanager
    def _explained(self, topic: str) -> Iterator[None]:
        try:
            yield
        except self._kafka.KafkaException as error:
            self._consumer.poll(0)  # only a poll calls `_note_error`, which learns why
            self._refuse(error.args[0], topic)

    def _refuse(self, error: KafkaError, topic: str) -> NoReturn:
        kind = StoreUnavailable if is_outage(error, self._cause) else StoreError
        raise kind(self._texts.of(error, topic, self._cause)) from None
