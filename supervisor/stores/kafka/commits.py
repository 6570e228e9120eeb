"""Commit the offsets that are done: in batches, and only those below the first that is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from supervisor.kafka.errors import ErrorTexts
from supervisor.kafka.events import CommitFailed, GroupEvent, OffsetsCommitted
from supervisor.stores.kafka.partitions import Partition
from supervisor.stores.kafka.state import KafkaState

REFUSED = 2.0
"""Seconds for which a last commit is repeated that the broker refuses since the group changes."""
AGAIN = 0.1

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
        self._uncommitted: set[Partition] = set()  # those that the last commits have failed for
        self._under_way: list[_Sent] = []
        self._due = now() + interval

    def commit_if_due(self) -> None:
        if self._uncommitted and self._uncommitted.isdisjoint(self._state.assignment.partitions.values()):
            self._succeeded()  # they were given up, and others have to commit their offsets
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
            sent, self._under_way = self._under_way, []
            self._note(sent, error.args[0], ())

    def committed(self, error: KafkaError | None, answers: Sequence[TopicPartition]) -> None:
        """Receive an answer of the broker. One to an earlier commit, which came too late, shows nothing of the one under way."""
        answered = {(it.topic, it.partition, it.offset) for it in answers}
        if answered == {(it.partition.topic, it.partition.number, it.offset) for it in self._under_way}:
            sent, self._under_way = self._under_way, []
            self._note(sent, error, answers)

    def commit_now(self, partitions: Collection[Partition]) -> None:
        """Commit what these partitions have done, before they are given up; also what is under way, since its answer may not come.

        The client has no limit for the wait, and lets no other thread use it while this one is in a callback: while the brokers
        hang, this call lasts.
        """
        for each in self._under_way:
            each.partition.changed = True
        if not (sent := self._done(partitions)):
            return
        until = self._now() + REFUSED
        while True:
            error: KafkaError | None = None
            answers: Sequence[TopicPartition] = ()
            try:
                answers = self._client.commit(offsets=_offsets(sent), asynchronous=False) or ()
            except KafkaException as raised:
                error = raised.args[0]
            if error is None or error.code() != KafkaError.REBALANCE_IN_PROGRESS or self._now() >= until:
                break
            time.sleep(AGAIN)  # the client goes on with the rebalance meanwhile
        self._note(sent, error, answers)

    def _succeeded(self) -> None:
        self.failing_since, self.error = None, ""
        self._uncommitted.clear()

    def _failed(self, partitions: Collection[Partition], error: str) -> None:
        self.error = error
        self._uncommitted.update(partitions)
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
            self._succeeded()
        done = [each for each in sent if each.partition not in failed]
        for each in done:
            each.partition.committed = each.offset
        if done:
            self._emit(OffsetsCommitted({each.partition.name: each.offset for each in done}))


def _offsets(sent: Sequence[_Sent]) -> list[TopicPartition]:
    return [TopicPartition(it.partition.topic, it.partition.number, it.offset, metadata=it.metadata) for it in sent]
