"""The thread that reads the topics: it polls at all times, so that the group keeps its partitions however long a job runs.

A partition whose share of the buffer is used up is paused, not left unread. All callbacks of the Kafka client run on this thread.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from supervisor.config.kafka import KafkaSettings
from supervisor.kafka_client import client_settings, headers_of
from supervisor.kafka_errors import ErrorTexts
from supervisor.kafka_events import GroupEvent, GroupProblem, PartitionsAssigned, PartitionsRevoked
from supervisor.stores.kafka.commits import Commits
from supervisor.stores.kafka.connection import Connection
from supervisor.stores.kafka.consumer_limits import USUAL_LIMITS, ConsumerLimits
from supervisor.stores.kafka.figures import Figures
from supervisor.stores.kafka.ids import Place, job_id, topic_numbers
from supervisor.stores.kafka.offsets import Offsets, Range, done_ranges
from supervisor.stores.kafka.partitions import Partition, Record, line_of
from supervisor.stores.kafka.resets import Resets, ResetWay, place_of
from supervisor.stores.kafka.state import KafkaState
from supervisor.stores.problems import Problem
from supervisor.threads import start_thread

logger = logging.getLogger("supervisor")

COMMITS_FAIL = "look at the brokers; records that are done are run again if this supervisor ends before a commit"
NOT_COMMITTED = "some records that are done may be run again by their next owner"
NOT_JOINED = (
    "look at the log of the brokers, and whether other members of the group hang; a new member waits for all of them"
)
_BROKERS_DOWN = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})
_STRATEGY = "partition.assignment.strategy"
"""It can't be set where the brokers assign the partitions: `group.protocol: consumer`."""
_USUAL = {"auto.offset.reset": "earliest", _STRATEGY: "cooperative-sticky"}
"""Settings of the client that the user may set, and whose defaults are other ones here."""


class GroupConsumer:
    """Reads the records of the assigned partitions into `state`, and commits what is done there."""

    def __init__(
        self, settings: KafkaSettings, state: KafkaState, emit: Callable[[GroupEvent], None],
        limits: ConsumerLimits = USUAL_LIMITS,
    ) -> None:  # fmt: skip
        self.joined = False
        """Whether the group has given this supervisor its partitions, which may be none."""
        self._settings, self._state, self._emit, self._limits = settings, state, emit, limits
        reset, strategy = (str(settings.kafka.get(key, usual)).lower() for key, usual in _USUAL.items())
        self._assigned_by_brokers = str(settings.kafka.get("group.protocol")).lower() == "consumer"
        cooperative = self._assigned_by_brokers or "cooperative" in strategy
        self._numbers = topic_numbers(settings.topics)
        self._epochs = count(1)
        self._texts = texts = ErrorTexts(settings.bootstrap, settings.kafka)
        self._client = Consumer(self._client_settings())
        self.connection = Connection(self._client, settings.topics, texts)
        self._commits = Commits(self._client, state, settings.commit_interval, emit, texts)
        self.figures = Figures(self._client, state, self._job_id, emit)
        self._stopping = threading.Event()
        self._stop_until = math.inf
        self._ended = False
        self._resets = Resets(
            self._client, state, self.connection, ResetWay(reset, cooperative), limits,
            failed=self._client_failed, made_anew=self._made_anew, emit=emit,
        )  # fmt: skip
        self._largest = 0  # bytes of the largest record that was read last
        self._started, self._reported_at, self._reported = time.monotonic(), -math.inf, ""
        self._thread: threading.Thread | None = None

    def _client_settings(self) -> dict[str, Any]:
        settings = self._settings
        usual = {key: value for key, value in _USUAL.items() if not (self._assigned_by_brokers and key == _STRATEGY)}
        return {
            **usual,
            **client_settings(settings.bootstrap, settings.kafka),
            "group.id": settings.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "on_commit": lambda error, answers: self._commits.committed(error, answers or ()),
            "error_cb": self._client_failed,
        }

    # on any thread

    def start(self) -> None:
        """Join the group. It may be called again."""
        if self._thread is None:
            self._started = time.monotonic()
            self._thread = start_thread(self._run, "kafka-consumer")

    def stop(self, timeout: float) -> bool:
        """Commit what is done, and leave the group. Return False if the brokers have not answered within `timeout` seconds of the
        first call."""
        if is_first := not self._stopping.is_set():
            self._stop_until = time.monotonic() + timeout
        self._stopping.set()
        self._state.woke()
        left = max(0.0, self._stop_until - time.monotonic())
        ended = self._thread is None or self._state.wait_until(lambda: self._ended, left)
        if is_first and not ended:
            logger.warning("no broker has answered within %gs to the last commit: %s", timeout, NOT_COMMITTED)
        return ended

    def problems(self) -> list[Problem]:
        """Return what goes wrong in the group although the brokers answer."""
        now, commits = time.monotonic(), self._commits
        found = []
        if commits.failing_since is not None and now - commits.failing_since > self._limits.uncommitted:
            what = f"no offset was committed for {now - commits.failing_since:.0f}s: {commits.error}"
            found.append(Problem("commits", what, COMMITS_FAIL))
        if self._thread is not None and not self.joined and now - self._started > self._limits.join:
            what = f"the group {self._settings.group} has given no partition for {now - self._started:.0f}s"
            found.append(Problem("group", what, NOT_JOINED))
        if now - self._reported_at < self._limits.recent:
            found.append(Problem("kafka", self._reported, "look at the brokers; the client tries again by itself"))
        return [*found, *self.figures.problems()]

    # on the thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            logger.exception("the consumer of Kafka ended by an error of its own; no further record is read")
            self.connection.broken(f"its consumer has ended: {type(error).__name__}: {error}; restart the supervisor")
            with suppress(Exception):
                self._client.close()  # otherwise it would keep its partitions for `max.poll.interval.ms`
        finally:
            self._ended = True
            self._state.woke()

    def _serve(self) -> None:
        self._client.subscribe(
            list(self._settings.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        while not self._stopping.is_set():
            self._read()
            self._resets.reset_if_due()
            self._pause_and_resume()
            self._commits.commit_if_due()
            self.figures.report_if_due()
            self.connection.look()
        self._give_up(
            list(self._state.assignment.partitions.values())
        )  # here, since a client that closes commits no more
        self._client.close()

    def _read(self) -> None:
        first = self._client.poll(self._limits.poll)
        if first is None:
            return
        self.connection.answered()
        self._take([first])  # before the next call, in which its partition may be taken and given again
        batch = self._state.assignment.batch(self._limits.batch, self._largest)
        self._largest = 0
        self._take(self._client.consume(batch, 0))

    def _take(self, messages: Sequence[Message]) -> None:
        with self._state.lock:
            read = [self._record(message) for message in messages if message.error() is None]
            records = [record for record in read if record is not None]
            self._largest = max(self._largest, *(record.bytes for record in records), 0)
            self._state.add_records(records)
        for message in messages:
            if (error := message.error()) is not None:
                self._message_failed(error, self._partition(message), message)

    def _partition(self, message: Message) -> Partition | None:
        topic, number = message.topic(), message.partition()
        return None if topic is None or number is None else self._state.assignment.partitions.get((topic, number))

    def _record(self, message: Message) -> Record | None:
        """Return the record of a message, unless it is not to be run."""
        partition, offset = self._partition(message), message.offset()
        if partition is None or partition.leaving or offset is None:
            return None
        partition.at_end = False
        if not partition.offsets.fetched(offset):
            partition.changed = True
            return None
        _, timestamp = message.timestamp()
        key, headers = message.key(), headers_of(message)
        return Record(
            self._job_id(partition, offset), partition, offset,
            timestamp if timestamp > 0 else None, key, message.value(), headers or (),
            line_of(self._settings.ordering, partition, key), unreadable=headers is None,
        )  # fmt: skip

    def _job_id(self, partition: Partition, offset: int) -> int:
        return job_id(Place(self._numbers[partition.topic], partition.number, offset))

    def _pause_and_resume(self) -> None:
        with self._state.lock:
            assignment, limits = self._state.assignment, self._limits
            pausing, resuming = [], []
            for partition in assignment.partitions.values():
                fullness = assignment.fullness(partition)
                if not partition.paused and fullness >= limits.pause_at:
                    pausing.append(partition)
                elif partition.paused and fullness <= limits.resume_at:
                    resuming.append(partition)
        if pausing:
            self._client.pause([place_of(partition) for partition in pausing])
        for partition in resuming:
            self._resume(partition)
        for partition in (*pausing, *resuming):
            partition.paused = not partition.paused

    def _resume(self, partition: Partition) -> None:
        """Read the partition again. The client would begin up to a second later, unless it gets the offset."""
        self._client.resume([place_of(partition)])
        if partition.offsets.position is not None:
            with suppress(KafkaException):  # the client does not read it yet
                self._client.seek(place_of(partition))

    # errors

    def _client_failed(self, error: KafkaError) -> None:
        self.connection.failed(error)
        if error.code() not in _BROKERS_DOWN:
            self._reported, self._reported_at = self._texts.of(error), time.monotonic()
            self._emit(GroupProblem(self._reported))

    def _message_failed(self, error: KafkaError, partition: Partition | None, message: Message) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            with self._state.lock:
                if partition is not None and not partition.leaving:
                    partition.at_end = partition.changed = True
                    partition.offsets.reached_end(message.offset() or 0)
                    self._state.on_ready()
        elif error.code() == KafkaError._AUTO_OFFSET_RESET and partition is not None:
            offset = message.offset()
            self._resets.refused(partition, -1 if offset is None else offset)
        else:
            self._client_failed(error)

    def _made_anew(self, partition: Partition) -> Partition:
        """Forget what was fetched of a topic that was made anew since: those offsets mean other records now."""
        self._drop([partition], lost=True)
        with self._state.lock:
            return self._assigned(partition.topic, partition.number, None, ())

    # rebalances

    def _on_assign(self, client: Consumer, given: Sequence[TopicPartition]) -> None:
        self.joined = True
        self.connection.answered()
        committed = self._committed(given)
        with self._state.lock:
            for each in given:
                self._assigned(each.topic, each.partition, *committed.get((each.topic, each.partition), (None, ())))
        self._client.resume(list(given))  # the client keeps a pause over assignments
        self._emit(PartitionsAssigned(_names(given)))

    def _assigned(self, topic: str, number: int, committed: int | None, done_before: Sequence[Range]) -> Partition:
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
            answers = self._client.committed(list(given), timeout=self._limits.ask)
        except KafkaException as error:
            self._client_failed(error.args[0])
            return {}
        return {
            (it.topic, it.partition): (it.offset, done_ranges(it.offset, it.metadata))
            for it in answers
            if it.error is None and it.offset >= 0
        }

    def _on_revoke(self, client: Consumer, taken: Sequence[TopicPartition]) -> None:
        self.connection.answered()  # otherwise the outcomes of an outage that this ends could not be settled in time
        self._give_up(_found(self._state, taken))

    def _give_up(self, partitions: Sequence[Partition]) -> None:
        """Let running jobs of the partitions end, for a while, and commit what is done. When the supervisor stops, no outcome comes
        any more: the thread that settles waits for this one."""
        if partitions:
            self._state.give_up(partitions, self._settings.revoke_timeout, hurry=self._stopping.is_set)
            self._commits.commit_now(partitions)
            self._drop(partitions, lost=False)

    def _on_lost(self, client: Consumer, taken: Sequence[TopicPartition]) -> None:
        if partitions := _found(self._state, taken):
            self._drop(partitions, lost=True)

    def _drop(self, partitions: Sequence[Partition], lost: bool) -> None:
        undone = self._state.drop(partitions)
        self._emit(PartitionsRevoked(sorted(partition.name for partition in partitions), lost, undone))


def _found(state: KafkaState, taken: Sequence[TopicPartition]) -> list[Partition]:
    with state.lock:
        found = [state.assignment.partitions.get((it.topic, it.partition)) for it in taken]
        return [partition for partition in found if partition is not None]


def _names(given: Sequence[TopicPartition]) -> list[str]:
    return sorted(f"{it.topic}/{it.partition}" for it in given)
