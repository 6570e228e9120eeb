"""Read on elsewhere when the brokers refuse the next offset of a partition."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from supervisor.kafka_events import GroupEvent, OffsetReset
from supervisor.stores.kafka.connection import Connection
from supervisor.stores.kafka.consumer_limits import ConsumerLimits
from supervisor.stores.kafka.ends import ends_of
from supervisor.stores.kafka.partitions import Partition
from supervisor.stores.kafka.state import KafkaState


class ResetWay(NamedTuple):
    """`auto.offset.reset`, and whether partitions come and go one by one."""

    reset: str
    cooperative: bool


class Resets:
    """All methods are called on the thread that polls. `made_anew` forgets what was fetched of a partition, and returns the one in its
    place."""

    def __init__(
        self, client: Consumer, state: KafkaState, connection: Connection, way: ResetWay, limits: ConsumerLimits,
        *, failed: Callable[[KafkaError], None], made_anew: Callable[[Partition], Partition],
        emit: Callable[[GroupEvent], None],
    ) -> None:  # fmt: skip
        self._client, self._state, self._connection, self._limits = client, state, connection, limits
        self._failed, self._made_anew, self._emit = failed, made_anew, emit
        self._at_end, self._on_error = way.reset in ("latest", "largest", "end"), way.reset == "error"
        self._cooperative = way.cooperative
        self._refused: dict[Partition, int] = {}  # and the offset that was asked for, or a negative one
        self._due = 0.0

    def refused(self, partition: Partition, asked: int) -> None:
        """Note that the brokers have refused this offset; it is negative if nothing is committed."""
        if not self._refused:
            self._due = time.monotonic() + self._limits.gather
        self._refused[partition] = asked

    def reset_if_due(self) -> None:
        """Reset the partitions whose next offset the brokers have refused: without the lock, since it takes an answer of theirs, and
        all at once, since nothing is polled meanwhile."""
        if not self._refused or time.monotonic() < self._due:
            return
        refused, self._refused = self._refused, {}
        assigned = self._state.assignment.partitions
        refused = {it: asked for it, asked in refused.items() if assigned.get((it.topic, it.number)) is it}
        # Others were refused before they were reset: an eager client asks again for all that had no position then.
        real = [it for it, asked in refused.items() if (at := it.offsets.position) is None or asked >= at]
        ends = {} if self._on_error else self._ends(real)
        moved = [partition for partition in refused if partition not in real]
        for partition in real:
            if self._on_error:
                self._refuse(partition)
            elif (found := ends.get((partition.topic, partition.number))) is not None:
                moved.append(self._reset(partition, *found))
            else:
                self._refused[partition] = refused[partition]
                self._due = time.monotonic() + self._limits.reset
        if moved:
            self._read_from(moved)

    def _ends(self, partitions: Sequence[Partition]) -> Mapping[tuple[str, int], tuple[int, int]]:
        try:
            return ends_of(self._client, partitions, self._limits.ask)
        except KafkaException as error:
            self._failed(error.args[0])
            return {}

    def _refuse(self, partition: Partition) -> None:
        wanted = partition.offsets.position
        what = "no offset is committed" if wanted is None else f"there is no record {wanted} any more"
        self._connection.broken(f"{partition.name}: {what}, and auto.offset.reset is error")

    def _reset(self, partition: Partition, low: int, high: int) -> Partition:
        """Set the partition to where the user wants it (`auto.offset.reset`) if nothing is committed, or to its first record if the
        next offset does not exist any more. Return it, or the one in its place."""
        wanted = partition.offsets.position
        if wanted is None:
            return self._start_at(partition, high if self._at_end else low)
        if low <= wanted:
            partition = self._made_anew(partition)
        self._emit(OffsetReset(partition.name, wanted, low))
        return self._start_at(partition, low)

    def _start_at(self, partition: Partition, offset: int) -> Partition:
        """Begin at this offset, and commit it: the next owner must not begin at a later end."""
        with self._state.lock:
            partition.offsets.position, partition.changed = offset, True
        return partition

    def _read_from(self, partitions: Sequence[Partition]) -> None:
        """Read these partitions from their positions on. All others go on as they are."""
        if self._cooperative:
            self._client.incremental_unassign([place_of(each) for each in partitions])
            self._client.incremental_assign([place_of(each) for each in partitions])
        else:
            with self._state.lock:
                partitions = list(self._state.assignment.partitions.values())
            self._client.assign([place_of(each) for each in partitions])
        self._client.resume([place_of(each) for each in partitions])  # an assignment alone does not end a pause
        for each in partitions:
            each.paused = False


def place_of(partition: Partition) -> TopicPartition:
    position = partition.offsets.position
    return TopicPartition(partition.topic, partition.number, OFFSET_INVALID if position is None else position)
