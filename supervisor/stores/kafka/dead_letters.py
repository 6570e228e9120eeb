"""Dead letters of a Kafka store: each has its record as it was read."""

from __future__ import annotations

from supervisor.stores.kafka.state import KafkaState
from supervisor.stores.kafka.values import raw_record
from supervisor.stores.memory.dead_letters import DeadLetterQueue
from supervisor.stores.memory.ownership import Ownership
from supervisor.stores.records import DeadLetter
from supervisor.stores.sinks import Sinks


class DeadLetters:
    def __init__(self, state: KafkaState, owner: Ownership) -> None:
        self._state = state
        self._queue = queue = DeadLetterQueue(state, owner)
        self.mark_accepted, self.postpone = queue.mark_accepted, queue.postpone

    def claim_dead_letters(self, limit: int, ttl: float, sinks: Sinks | None = None) -> list[DeadLetter]:
        with self._state.lock:
            claimed = self._queue.claim_dead_letters(limit, ttl, sinks)
            return [each._replace(job={**each.job, "record": self._record(each.id)}) for each in claimed]

    def _record(self, id: int) -> object:
        record = self._state.assignment.records[id]
        partition = record.partition
        return raw_record(
            topic=partition.topic, partition=partition.number, offset=record.offset, epoch=partition.epoch,
            timestamp=record.timestamp, key=record.key, value=record.value, headers=record.headers or (),
        )  # fmt: skip
