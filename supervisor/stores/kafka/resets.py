"""Where a partition is read on if nothing is committed, or if the next offset does not exist any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException

from supervisor.kafka.events import GroupEvent, OffsetReset
from supervisor.stores.kafka.client_check import is_cooperative
from supervisor.stores.kafka.connection import Connection
from supervisor.stores.kafka.ends import at_position, ends_of
from supervisor.stores.kafka.partitions import Partition
from supervisor.stores.kafka.rebalances import Rebalances
from supervisor.stores.kafka.state import KafkaState


class ResetLimits(NamedTuple):
    """Seconds."""

    ask: float = 10.0  # for an answer about offsets
    gather: float = 0.1  # from the first refusal of an offset, for those of other partitions
    again: float = 1.0  # until the brokers are asked again for the first and the last offset


class Resets:
    """Resets the partitions whose next offset the brokers have refused. All methods are called on the thread that polls. `kafka` are
    settings of librdkafka, of which `auto.offset.reset` decides."""

    def __init__(
        self, client: Consumer, state: KafkaState, connection: Connection, rebalances: Rebalances, kafka: Mapping[str, object],
        emit: Callable[[GroupEvent], None], on_error_of_client: Callable[[KafkaError], None], limits: ResetLimits,
    ) -> None:  # fmt: skip
        self._client, self._state, self._connection, self._rebalances = client, state, connection, rebalances
        self._emit, self._on_error_of_client, self._limits = emit, on_error_of_client, limits
        reset = str(kafka.get("auto.offset.reset", "earliest")).lower()
        self._at_end, self._never = reset in ("latest", "largest", "end"), reset == "error"
        self._cooperative = is_cooperative(kafka)
        self._refused: dict[Partition, int] = {}  # and the offset that was asked for, or a negative one
        self._due = 0.0

    def refused(self, partition: Partition, offset: int | None) -> None:
        """Note that the brokers have refused to read the partition at this offset."""
        if not self._refused:
            self._due = time.monotonic() + self._limits.gather
        self._refused[partition] = -1 if offset is None else offset

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
        ends = {} if self._never else self._ends(real)
        moved = [partition for partition in refused if partition not in real]
        for partition in real:
            if self._never:
                self._refuse(partition)
            elif (found := ends.get((partition.topic, partition.number))) is not None:
                moved.append(self._reset(partition, *found))
            else:
                self._refused[partition] = refused[partition]
                self._due = time.monotonic() + self._limits.again
        if moved:
            self._read_from(moved)

    def _ends(self, partitions: Sequence[Partition]) -> Mapping[tuple[str, int], tuple[int, int]]:
        try:
            return ends_of(self._client, partitions, self._limits.ask)
        except KafkaException as error:
            self._on_error_of_client(error.args[0])
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
        if low <= wanted:  # the topic was made anew: the offsets of what was fetched before mean other records
            self._rebalances.drop([partition], lost=True)
            with self._state.lock:
                partition = self._rebalances.assigned(partition.topic, partition.number, None, ())
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
            self._client.incremental_unassign([at_position(each) for each in partitions])
            self._client.incremental_assign([at_position(each) for each in partitions])
        else:
            with self._state.lock:
                partitions = list(self._state.assignment.partitions.values())
            self._client.assign([at_position(each) for each in partitions])
        self._client.resume([at_position(each) for each in partitions])  # an assignment alone does not end a pause
        for each in partitions:
            each.paused = False
