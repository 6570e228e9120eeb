"""The consumer group as its brokers show it to programs that are not in it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from supervisor.config.kafka import KafkaSettings
from supervisor.errors import StoreUnavailable
from supervisor.kafka.client import client_settings, serve_errors
from supervisor.kafka.errors import ErrorTexts
from supervisor.stores.codes import READY
from supervisor.stores.counts import queue_rows
from supervisor.stores.kafka.offsets import done_ranges
from supervisor.stores.records import microseconds
from supervisor.stores.supervisors import SupervisorRow, supervisor_dict
from supervisor.text.units import iso

TIMEOUT = 10.0
"""Seconds for an answer of the brokers."""
_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_CLIENT = re.compile(r"supervisor-(?P<host>.+)-(?P<pid>\d+)")

Result = TypeVar("Result")


class Lag(NamedTuple):
    """A partition: the offset that is read next after a restart, the one behind its last record, and the records to be run."""

    topic: str
    partition: int
    committed: int | None
    end: int
    undone: int


class Group:
    def __init__(self, settings: KafkaSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._clock = settings, clock
        self._texts = ErrorTexts(settings.bootstrap, settings.kafka)
        common = client_settings(settings.bootstrap, settings.kafka)
        self._admin = AdminClient(common)
        self._cause: KafkaError | None = None
        own = {"group.id": settings.group, "enable.auto.commit": False, "error_cb": self._note_error}
        self._client = Consumer({**common, **own})

    def close(self) -> None:
        self._client.close()

    def topics(self, names: Collection[str] = ()) -> dict[str, int | None]:
        """Return the number of partitions of these topics, by default of those of the config, or None if one does not exist."""
        names = names or self._settings.topics
        with self._answering():
            found = self._client.list_topics(timeout=TIMEOUT).topics
        exists = {topic for topic in names if topic in found and found[topic].error is None}
        return {topic: len(found[topic].partitions) if topic in exists else None for topic in names}

    def lags(self) -> list[Lag]:
        """Return the lag of each partition of the topics."""
        partitions = [TopicPartition(topic, number) for topic, n in self.topics().items() for number in range(n or 0)]
        if not partitions:
            return []
        with self._answering():
            committed = self._client.committed(partitions, timeout=TIMEOUT)
            first, end = (
                self._offsets(partitions, _EARLIEST),
                self._offsets(partitions, _LATEST),
            )
        return [_lag(each, first[each.topic, each.partition], end[each.topic, each.partition]) for each in committed]

    def _offsets(self, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = self._admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=TIMEOUT)
        return {(it.topic, it.partition): future.result().offset for it, future in asked.items()}

    def stats(self) -> dict[str, Any]:
        """Return what `status --json` prints: a queue for each topic, with the records that are not done as its size, and a
        supervisor for each member of the group. What only the supervisors know is empty."""
        undone: dict[str, int] = dict.fromkeys(self._settings.topics, 0)
        lags = {f"{lag.topic}/{lag.partition}": lag for lag in self.lags()}
        for lag in lags.values():
            undone[lag.topic] += lag.undone
        counted = [(topic, READY, 0, n) for topic, n in undone.items()]
        now = microseconds(self._clock())
        rows = [
            supervisor_dict(_row(client, host, now), False, (), (), {"partitions": _partitions(names, lags)})
            for client, host, names in self.members()
        ]
        return {
            "at": iso(now),
            "queues": queue_rows(counted, frozenset(), {}),
            "supervisors": rows,
            "sinks": [],
            "stuck": [],
        }

    def members(self) -> list[tuple[str, str, Sequence[str]]]:
        """Return the client id, the host and the partitions of each member of the group."""
        with self._answering():
            described = self._admin.describe_consumer_groups([self._settings.group], request_timeout=TIMEOUT)
            group = described[self._settings.group].result()
        if group.state in (ConsumerGroupState.DEAD, ConsumerGroupState.EMPTY):
            return []
        return [
            (it.client_id, it.host, sorted(f"{tp.topic}/{tp.partition}" for tp in it.assignment.topic_partitions))
            for it in group.members
        ]

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            serve_errors(self._client)
            raise StoreUnavailable(self._texts.of(error.args[0], cause=self._cause)) from None

    def _note_error(self, error: KafkaError) -> None:
        if error.name() != "_ALL_BROKERS_DOWN":
            self._cause = error


def _lag(committed: TopicPartition, first: int, end: int) -> Lag:
    known = committed.offset >= 0
    start = max(committed.offset, first) if known else first
    ranges = done_ranges(committed.offset, committed.metadata) if known else []
    done = sum(min(last, end) - max(begin, start) for begin, last in ranges if last > start and begin < end)
    return Lag(
        committed.topic, committed.partition, committed.offset if known else None, end, max(0, end - start - done)
    )


def _partitions(names: Sequence[str], lags: Mapping[str, Lag]) -> list[dict[str, Any]]:
    """Return the partitions of a member, as `status --json` has them."""
    unknown = dict.fromkeys(("undone", "oldest", "job_id", "held_for"))
    return [
        {"topic": lag.topic, "partition": lag.partition, "committed": lag.committed, "lag": lag.undone, **unknown}
        for name in names
        if (lag := lags.get(name)) is not None
    ]


def _row(client: str, host: str, now: int) -> SupervisorRow:
    named = _CLIENT.fullmatch(client)
    where, pid = (named["host"], int(named["pid"])) if named else (host, 0)
    return SupervisorRow(client, where, pid, "running", now, 0, None)
