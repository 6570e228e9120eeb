"""A Kafka store for the suite: one supervisor has all partitions, and a record is read as soon as it is enqueued."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor.config.kafka import is_topic
from supervisor.errors import Unsupported
from supervisor.stores.kafka.group import Group
from supervisor.stores.kafka.ids import Place, job_id, place_of
from supervisor.stores.kafka.partitions import EPOCH_BITS
from supervisor.stores.kafka.producing import Producing
from supervisor.stores.records import EnqueueRow
from supervisor.stores.sinks import Sinks
from tests.stores.factories import StoreFactory
from tests.stores.simulated_kafka import FedStore, Log, PartitionName, kafka_settings


class JoinedGroup:
    """In place of the thread that reads."""

    joined = True

    @property
    def membership(self) -> JoinedGroup:
        return self

    def start(self) -> None:
        pass

    def stop(self, timeout: float) -> bool:
        return True


class ReadAtOnce(FedStore):
    """A queue is a topic of one partition. The handlers are named by a header. It raises Unsupported where a test needs what the
    store does not have, as its own calls do."""

    def __init__(self, factory: KafkaFactory) -> None:
        super().__init__(factory.log, kafka_settings({"default": None}), factory.clock)
        self._factory = factory
        self.numbers = factory.numbers
        self.enqueue = self.enqueue_rows
        self._get = self.get
        self.get = self.get_kept

    def join(self, owner: str, host: str, pid: int, sinks: Sinks = frozenset()) -> int | None:
        member = self._factory.member = self._factory.member or self
        if member is not self:
            raise Unsupported("share its jobs with another supervisor", "")
        self._consumer = JoinedGroup()  # type: ignore[assignment]
        return super().join(owner, host, pid, sinks)

    def enqueue_rows(self, rows: Sequence[EnqueueRow]) -> list[int]:
        for row in rows:
            if not is_topic(row.queue):
                raise Unsupported(f"have the queue {row.queue!r}, which is no name of a topic", "")
        records = [Producing(kafka_settings({row.queue: None}))._record(row) for row in rows]
        ids, now = [], round(self.state.clock() * 1000)
        for record in records:
            number = self.numbers.setdefault(record.topic, len(self.numbers) + 1)
            offset = self.log.append((record.topic, 0), record.key, record.value, record.headers, timestamp=now)
            ids.append(job_id(Place(number, 0, offset)))
        self._factory.read()
        return ids

    @property
    def group(self) -> Group:
        raise Unsupported("answer a program that has not joined, without a broker", "")

    def get_kept(self, id: int) -> dict[str, Any] | None:
        place = place_of(id)
        found = self._get(id)
        if found is None and place.offset < self.log.ends.get(self._factory.topic(place.topic), 0):
            raise Unsupported("show jobs that have succeeded", "")
        return found


class KafkaFactory(StoreFactory):
    max_notifications = 65_536
    durable = False
    first_token = (1 << EPOCH_BITS) + 1
    dead_letters_have_records = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log, self.numbers = Log(), {"default": 1}
        self.member: ReadAtOnce | None = None
        """The first supervisor that has joined."""

    def topic(self, number: int) -> PartitionName:
        return next(((name, 0) for name, n in self.numbers.items() if n == number), ("", 0))

    def read(self) -> None:
        if self.member is not None:
            for name in self.log.ends:
                if name not in self.member.partitions:
                    self.member.assign(name)
                self.member.fetch(name)

    def _open(self) -> ReadAtOnce:
        return ReadAtOnce(self)
