"""A client of Kafka whose brokers are the test: it gives its consumer what the test puts into it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition


class FakeMessage:
    def __init__(
        self, topic: str, partition: int, offset: int, error: KafkaError | None = None, key: bytes | None = None
    ) -> None:
        self._topic, self._partition, self._offset, self._error, self._key = topic, partition, offset, error, key

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes:
        return b"{}"

    def headers(self) -> list[tuple[str, bytes]]:
        return [("name", b"value")]

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000


class FakeClient:
    """`calls` are those that change what is read, in order. `watermarks` are the first offset and the one behind the last; an
    exception is raised once."""

    def __init__(self, conf: dict[str, Any]) -> None:
        self.conf = conf
        self.calls: list[tuple[str, list[tuple[str, int, int]]]] = []
        self.commits: list[dict[tuple[str, int], int]] = []
        self.commit_error: KafkaError | None = None
        self.committed_offsets: dict[tuple[str, int], tuple[int, str]] = {}
        self.watermarks: list[tuple[int, int] | Exception] = []
        self.on_watermarks: Callable[[], None] = lambda: None
        self.closed = threading.Event()
        self._queue: deque[FakeMessage | Callable[[], None] | threading.Event] = deque()
        self._filled = threading.Semaphore(0)

    # for the test

    def put(self, *items: FakeMessage | Callable[[], None] | threading.Event) -> None:
        """Have the consumer get these messages, and make these calls on its thread. An event is set at the beginning of a poll."""
        for item in items:
            self._queue.append(item)
            self._filled.release()

    def wait(self) -> None:
        """Wait until the consumer has done all that was put before, and what it does after each poll."""
        for _ in range(2):
            done = threading.Event()
            self.put(done)
            assert done.wait(10)

    def assign_partitions(self, *names: tuple[str, int]) -> Callable[[], None]:
        return lambda: self.rebalance("on_assign", names)

    def rebalance(self, callback: str, names: Sequence[tuple[str, int]]) -> None:
        self.callbacks[callback](self, [TopicPartition(*name) for name in names])
        self.calls.append((callback, []))

    # as the real one

    def subscribe(self, topics: Sequence[str], **callbacks: Callable[..., None]) -> None:
        self.callbacks = callbacks

    def poll(self, timeout: float) -> FakeMessage | None:
        if not self._filled.acquire(timeout=timeout):
            return None
        item = self._queue.popleft()
        if isinstance(item, FakeMessage):
            return item
        item.set() if isinstance(item, threading.Event) else item()
        return None

    def consume(self, n: int, timeout: float) -> list[FakeMessage]:
        found: list[FakeMessage] = []
        while len(found) < n and self._queue and not isinstance(self._queue[0], threading.Event):
            if (message := self.poll(0)) is not None:
                found.append(message)
        return found

    def commit(self, offsets: Sequence[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        if self.commit_error is not None:
            raise KafkaException(self.commit_error)
        self.commits.append({(it.topic, it.partition): it.offset for it in offsets})
        self.committed_offsets |= {(it.topic, it.partition): (it.offset, it.metadata or "") for it in offsets}
        if asynchronous:
            self.put(lambda: self.conf["on_commit"](None, offsets))
        return list(offsets)

    def committed(self, partitions: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        found = [(it, self.committed_offsets.get((it.topic, it.partition), (-1001, ""))) for it in partitions]
        return [TopicPartition(it.topic, it.partition, *committed) for it, committed in found]

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = 0.0, cached: bool = False
    ) -> tuple[int, int]:
        return 0, -1001

    def offsets_for_times(self, partitions: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        """Take the next of the watermarks for each partition once both their ends are asked for."""
        self.on_watermarks()
        found = self.watermarks[: len(partitions)]
        for each in found:
            if isinstance(each, Exception):
                self.watermarks.remove(each)
                raise each
        last = partitions[0].offset == OFFSET_END
        if last:
            del self.watermarks[: len(partitions)]
        pairs = zip(partitions, found, strict=True)
        return [TopicPartition(it.topic, it.partition, both[last]) for it, both in pairs if isinstance(both, tuple)]

    def list_topics(self, timeout: float) -> Any:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def close(self) -> None:
        self.closed.set()

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("pause", partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("resume", partitions)

    def seek(self, partition: TopicPartition) -> None:
        self._note("seek", [partition])

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("assign", partitions)

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("incremental_assign", partitions)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("incremental_unassign", partitions)

    def _note(self, call: str, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append((call, [(it.topic, it.partition, it.offset) for it in partitions]))
