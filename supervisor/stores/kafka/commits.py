"""Commit the offsets that are done: in batches, and only those below the first that is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from supervisor.kafka_errors import ErrorTexts
from supervisor.kafka_events import CommitFailed, GroupEvent, OffsetsCommitted
from supervisor.stores.kafka.partitions import Partition
from supervisor.stores.kafka.state import KafkaState
from supervisor.threads import start_thread

LAST_COMMIT = 5.0
"""Seconds for the commit before a partition is given up."""

ANSWER = 60.0
"""Seconds for an answer to a commit; the client gives one way before, unless it has lost the commit."""

Emit = Callable[[GroupEvent], None]


class _Sent(NamedTuple):
    partition: Partition
    offset: int
    metadata: str


class Commits:
    """All public methods are called on the thread that polls. One commit is under way at a time, so that none overtakes another."""

    def __init__(
        self, client: Consumer, state: KafkaState, interval: float, emit: Emit, texts: ErrorTexts,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._client, self._state, self._interval, self._emit = client, state, interval, emit
        self._texts, self._now = texts, now
        self.failing_since: float | None = None
        self.error = ""
        """Of the last commit, while commits fail."""
        self._under_way: list[_Sent] = []
        self._due = now() + interval
        self._last_commits: SimpleQueue[tuple[list[TopicPartition], SimpleQueue[Any]]] = SimpleQueue()
        start_thread(self._commit_last, "kafka-commit")

    def commit_if_due(self) -> None:
        now = self._now()
        if now < self._due or (self._under_way and now < self._due + ANSWER):
            return
        self._due = now + self._interval
        self._under_way = self._done(self._state.assignment.partitions.values())
        if not self._under_way:
            self.failing_since, self.error = None, ""  # what could not be committed was lost
            return
        try:
            self._client.commit(offsets=_offsets(self._under_way), asynchronous=True)
        except KafkaException as error:
            self.committed(error.args[0], ())

    def committed(self, error: KafkaError | None, answers: Sequence[TopicPartition]) -> None:
        """Receive the broker's answer to the commit that is under way."""
        sent, self._under_way = self._under_way, []
        self._note(sent, error, answers)

    def commit_now(self, partitions: Collection[Partition]) -> None:
        """Commit what these partitions have done, before they are given up, for at most LAST_COMMIT seconds: the client itself
        has no limit for it. A commit that is under way is not awaited: its offsets are committed once more, since it may fail."""
        for each in self._under_way:
            each.partition.changed = True
        if not (sent := self._done(partitions)):
            return
        answered: SimpleQueue[tuple[KafkaError | None, Sequence[TopicPartition]]] = SimpleQueue()
        self._last_commits.put((_offsets(sent), answered))
        try:
            self._note(sent, *answered.get(timeout=LAST_COMMIT))
        except Empty:
            partitions = [each.partition for each in sent]
            self._failed(partitions, f"no broker has answered within {LAST_COMMIT:g}s, and the partitions are given up")

    def _commit_last(self) -> None:
        """Make the commits of `commit_now`, on a thread of their own."""
        while True:
            offsets, answered = self._last_commits.get()
            try:
                answered.put((None, self._client.commit(offsets=offsets, asynchronous=False) or ()))
            except KafkaException as error:
                answered.put((error.args[0], ()))
            except RuntimeError:  # the client was closed meanwhile
                answered.put((KafkaError(KafkaError._DESTROY), ()))

    def _failed(self, partitions: Iterable[Partition], error: str) -> None:
        self.error = error
        if self.failing_since is None:
            self.failing_since = self._now()
        self._emit(CommitFailed(sorted(partition.name for partition in partitions), error))

    def _done(self, partitions: Collection[Partition]) -> list[_Sent]:
        """Return what has changed since the last commit."""
        with self._state.lock:
            sent = []
            for partition in [partition for partition in partitions if partition.changed]:
                offset = partition.offsets.committable
                if offset is not None:
                    metadata, complete = partition.offsets.metadata()
                    partition.metadata_full, partition.changed = not complete, False
                    sent.append(_Sent(partition, offset, metadata))
            return sent

    def _note(self, sent: Sequence[_Sent], error: KafkaError | None, answers: Sequence[Any]) -> None:
        refused = {(it.topic, it.partition): it.error for it in answers if it.error is not None}
        failed = {
            each.partition: reason
            for each in sent
            if (reason := error or refused.get((each.partition.topic, each.partition.number))) is not None
        }
        for partition in failed:
            partition.changed = True
        if failed:
            self._failed(failed, self._texts.of(next(iter(failed.values()))))
        else:
            self.failing_since, self.error = None, ""
        done = [each for each in sent if each.partition not in failed]
        for each in done:
            each.partition.committed = each.offset
        if done:
            self._emit(OffsetsCommitted({each.partition.name: each.offset for each in done}))


def _offsets(sent: Sequence[_Sent]) -> list[TopicPartition]:
    return [TopicPartition(it.partition.topic, it.partition.number, it.offset, metadata=it.metadata) for it in sent]
