"""The partitions that the group gives to this supervisor, and takes from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from supervisor.kafka.events import GroupEvent, PartitionsAssigned, PartitionsRevoked
from supervisor.stores.kafka.commits import Commits
from supervisor.stores.kafka.connection import Connection
from supervisor.stores.kafka.membership import Membership
from supervisor.stores.kafka.offsets import Offsets, Range, done_ranges
from supervisor.stores.kafka.partitions import Partition
from supervisor.stores.kafka.state import KafkaState

ASK = 10.0
"""Seconds for an answer about committed offsets."""


class Rebalances:
    """The callbacks of the client, which are called on the thread that polls. `is_stopping` is whether the supervisor ends."""

    def __init__(
        self, client: Consumer, state: KafkaState, connection: Connection, commits: Commits, membership: Membership,
        revoke_timeout: float, emit: Callable[[GroupEvent], None], on_error_of_client: Callable[[KafkaError], None],
        is_stopping: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._client, self._state, self._connection, self._commits = client, state, connection, commits
        self._membership, self._revoke_timeout = membership, revoke_timeout
        self._emit, self._on_error_of_client, self._is_stopping = emit, on_error_of_client, is_stopping
        self._epochs = count(1)

    def on_assign(self, client: Consumer, given: Sequence[TopicPartition]) -> None:
        self._membership.assigned()
        self._connection.answered()
        committed = self._committed(given)
        with self._state.lock:
            for each in given:
                self.assigned(each.topic, each.partition, *committed.get((each.topic, each.partition), (None, ())))
        self._client.resume(list(given))  # the client keeps a pause over assignments
        self._emit(PartitionsAssigned(_names(given)))

    def assigned(self, topic: str, number: int, committed: int | None, done_before: Sequence[Range]) -> Partition:
        partition = Partition(topic, number, next(self._epochs), Offsets(committed, done_before), committed)
        self._state.assignment.partitions[topic, number] = partition
        return partition

    def _committed(
        self, given: Sequence[TopicPartition]
    ) -> Mapping[tuple[str, int], tuple[int | None, Sequence[Range]]]:
        """Return for each partition the committed offset, if there is one, and the ranges beyond it that are done."""
        if not given:
            return {}
        try:
            answers = self._client.committed(list(given), timeout=ASK)
        except KafkaException as error:
            self._on_error_of_client(error.args[0])
            return {}
        return {
            (it.topic, it.partition): (it.offset, done_ranges(it.offset, it.metadata))
            for it in answers
            if it.error is None and it.offset >= 0
        }

    def on_revoke(self, client: Consumer, taken: Sequence[TopicPartition]) -> None:
        self._connection.answered()  # otherwise the outcomes of an outage that this ends could not be settled in time
        self.give_up(_found(self._state, taken))

    def give_up(self, partitions: Sequence[Partition]) -> None:
        """Let running jobs of the partitions end, for a while, and commit what is done. When the supervisor stops, no outcome comes
        any more: the thread that settles waits for this one."""
        if partitions:
            self._state.give_up(partitions, self._revoke_timeout, hurry=self._is_stopping)
            self._commits.commit_now(partitions)
            self.drop(partitions, lost=False)

    def on_lost(self, client: Consumer, taken: Sequence[TopicPartition]) -> None:
        if partitions := _found(self._state, taken):
            self.drop(partitions, lost=True)

    def drop(self, partitions: Sequence[Partition], lost: bool) -> None:
        if len(partitions) >= len(self._state.assignment.partitions):
            self._membership.wait()
        undone = self._state.drop(partitions)
        self._emit(PartitionsRevoked(sorted(partition.name for partition in partitions), lost, undone))


def _found(state: KafkaState, taken: Sequence[TopicPartition]) -> list[Partition]:
    with state.lock:
        found = [state.assignment.partitions.get((it.topic, it.partition)) for it in taken]
        return [partition for partition in found if partition is not None]


def _names(given: Sequence[TopicPartition]) -> list[str]:
    return sorted(f"{it.topic}/{it.partition}" for it in given)
