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
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from supervisor.config.kafka import KafkaSettings
from supervisor.kafka_client import client_settings, headers_of
from supervisor.kafka_errors import ErrorTexts
from supervisor.kafka_events import GroupEvent, GroupProblem, OffsetReset, PartitionsAssigned, PartitionsRevoked
from supervisor.stores.kafka.client_check import is_cooperative, usual_settings
from supervisor.stores.kafka.commits import Commits
from supervisor.stores.kafka.connection import Connection
from supervisor.stores.kafka.figures import Figures
from supervisor.stores.kafka.ids import job_ids
from supervisor.stores.kafka.membership import Membership
from supervisor.stores.kafka.offsets import Offsets, Range, done_ranges
from supervisor.stores.kafka.partitions import Partition, Record, line_of
from supervisor.stores.kafka.state import KafkaState
from supervisor.stores.problems import Problem
from supervisor.threads import start_thread

logger = logging.getLogger("supervisor")


class ConsumerLimits(NamedTuple):
    """Times are seconds; the others are parts of a partition's share of the buffer."""

    batch: int = 500  # messages, at most, that are taken from the client at once
    poll: float = 0.1  # for the first message
    ask: float = 10.0  # for an answer about offsets
    gather: float = 0.1  # from the first refusal of an offset, for those of other partitions
    reset: float = 1.0  # until the brokers are asked again for the first and the last offset
    pause_at: float = 1.0
    resume_at: float = 0.5
    uncommitted: float = 10.0  # with failing commits, until they are a problem
    join: float = 60.0  # until the group should have given partitions
    settle: float = 5.0  # beyond store.revoke_timeout, until an assignment without partitions is believed
    recent: float = 30.0  # for which an error of the client is a problem


USUAL_LIMITS = ConsumerLimits()
COMMITS_FAIL = "look at the brokers; records that are done are run again if this supervisor ends before a commit"
_BROKERS_DOWN = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})


class GroupConsumer:
    """Reads the records of the assigned partitions into `state`, and commits what is done there."""

    def __init__(
        self, settings: KafkaSettings, state: KafkaState, emit: Callable[[GroupEvent], None],
        limits: ConsumerLimits = USUAL_LIMITS,
    ) -> None:  # fmt: skip
        self._settings, self._state, self._emit, self._limits = settings, state, emit, limits
        reset = str(settings.kafka.get("auto.offset.reset", "earliest")).lower()
        self._at_end, self._on_error = reset in ("latest", "largest", "end"), reset == "error"
        self._cooperative = is_cooperative(settings.kafka)
        self._job_id = job_ids(settings.topics)
        self._epochs = count(1)
        self._texts = texts = ErrorTexts(settings.bootstrap, settings.kafka)
        self._client = Consumer(self._client_settings())
        self.connection = Connection(self._client, settings.topics, texts)
        self._commits = Commits(self._client, state, settings.commit_interval, emit, texts)
        self.figures = Figures(self._client, state, self._job_id, emit)
        self._stopping = threading.Event()
        self._ended = False
        self._refused: dict[Partition, int] = {}  # and the offset that was asked for, or a negative one
        self._reset_due = 0.0
        self._largest = 0  # bytes of the largest record that was read last
        self.membership = Membership(
            settings.group,
            lambda: bool(state.assignment.partitions),
            settings.revoke_timeout + limits.settle,
            limits.join,
        )
        self._reported_at, self._reported = -math.inf, ""
        self._thread: threading.Thread | None = None

    def _client_settings(self) -> dict[str, Any]:
        settings = self._settings
        return {
            **usual_settings(settings.kafka),
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
            self.membership.wait()
            self.connection.polled = True
            self._thread = start_thread(self._run, "kafka-consumer")

    def stop(self, timeout: float) -> bool:
        """Commit what is done, and leave the group. Return False if the brokers did not answer within `timeout` seconds."""
        self._stopping.set()
        self._state.woke()
        return self._thread is None or self._state.wait_until(lambda: self._ended, timeout)

    def problems(self) -> list[Problem]:
        """Return what goes wrong in the group although the brokers answer."""
        now, failing_since, error = time.monotonic(), self._commits.failing_since, self._commits.error
        found = []
        if failing_since is not None and now - failing_since > self._limits.uncommitted:
            what = f"no offset was committed for {now - failing_since:.0f}s: {error}"
            found.append(Problem("commits", what, COMMITS_FAIL))
        if now - self._reported_at < self._limits.recent:
            found.append(Problem("kafka", self._reported, "look at the brokers; the client tries again by itself"))
        return [*found, *self.membership.problems(), *self.figures.problems()]

    # on the thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            logger.exception("the consumer of Kafka ended by an error of its own; no further record is read")
            self.connection.broken(f"its consumer has ended: {type(error).__name__}: {error}; restart the supervisor")
        finally:
            self._ended = True
            self._state.woke()

    def _serve(self) -> None:
        self._client.subscribe(
            list(self._settings.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        while not self._stopping.is_set():
            self._read()
            self._reset_refused()
            self._pause_and_resume()
            self._commits.commit_if_due()
            self.figures.report_if_due()
            self.connection.look()
            if self.connection.answers:
                self.membership.report_if_late()
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
            self._job_id(partition.topic, partition.number, offset), partition, offset,
            timestamp if timestamp > 0 else None, key, message.value(), headers or (),
            line_of(self._settings.ordering, partition, key), unreadable=headers is None,
        )  # fmt: skip

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
            self._client.pause([_of(partition) for partition in pausing])
        for partition in resuming:
            self._resume(partition)
        for partition in (*pausing, *resuming):
            partition.paused = not partition.paused

    def _resume(self, partition: Partition) -> None:
        """Read the partition again. The client would begin up to a second later, unless it gets the offset."""
        self._client.resume([_of(partition)])
        if partition.offsets.position is not None:
            with suppress(KafkaException):  # the client does not read it yet
                self._client.seek(_of(partition))

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
            if not self._refused:
                self._reset_due = time.monotonic() + self._limits.gather
            self._refused[partition] = -1 if offset is None else offset
        else:
            self._client_failed(error)

    def _reset_refused(self) -> None:
        """Reset the partitions whose next offset the brokers have refused: without the lock, since it takes an answer of theirs. All
        are asked for at once, since nothing is polled meanwhile, and each answer comes behind that to a fetch."""
        if not self._refused or time.monotonic() < self._reset_due:
            return
        refused, self._refused = self._refused, {}
        assigned = self._state.assignment.partitions
        refused = {it: asked for it, asked in refused.items() if assigned.get((it.topic, it.number)) is it}
        # Others were refused before they were reset: an eager client asks again for all that had no position then.
        real = [it for it, asked in refused.items() if (at := it.offsets.position) is None or asked >= at]
        bounds = {} if self._on_error else self._bounds(real)
        moved = [partition for partition in refused if partition not in real]
        for partition in real:
            if self._on_error:
                self._refuse(partition)
            elif (found := bounds.get((partition.topic, partition.number))) is not None:
                moved.append(self._reset(partition, *found))
            else:
                self._refused[partition] = refused[partition]
                self._reset_due = time.monotonic() + self._limits.reset
        if moved:
            self._read_from(moved)

    def _bounds(self, partitions: Sequence[Partition]) -> Mapping[tuple[str, int], tuple[int, int]]:
        """Return the first offset and the one behind the last of each partition of which the brokers give both."""
        answers: list[dict[tuple[str, int], int]] = []
        try:
            for end in (OFFSET_BEGINNING, OFFSET_END):
                asked = [TopicPartition(it.topic, it.number, end) for it in partitions]
                found = self._client.offsets_for_times(asked, timeout=self._limits.ask) if asked else []
                answers.append({(it.topic, it.partition): it.offset for it in found if it.error is None})
        except KafkaException as error:
            self._client_failed(error.args[0])
            return {}
        low, high = answers
        return {name: (low[name], high[name]) for name in low.keys() & high.keys()}

    def _refuse(self, partition: Partition) -> None:
        wanted = partition.offsets.position
        what = "no offset is committed" if wanted is None else f"there is no record {wanted} any more"
        self.connection.broken(f"{partition.name}: {what}, and auto.offset.reset is error")

    def _reset(self, partition: Partition, low: int, high: int) -> Partition:
        """Set the partition to where the user wants it (`auto.offset.reset`) if nothing is committed, or to its first record if the
        next offset does not exist any more. Return it, or the one in its place."""
        wanted = partition.offsets.position
        if wanted is None:
            return self._start_at(partition, high if self._at_end else low)
        if low <= wanted:  # the topic was made anew: the offsets of what was fetched before mean other records
            self._drop([partition], lost=True)
            with self._state.lock:
                partition = self._assigned(partition.topic, partition.number, None, ())
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
            self._client.incremental_unassign([_of(each) for each in partitions])
            self._client.incremental_assign([_of(each) for each in partitions])
        else:
            with self._state.lock:
                partitions = list(self._state.assignment.partitions.values())
            self._client.assign([_of(each) for each in partitions])
        self._client.resume([_of(each) for each in partitions])  # an assignment alone does not end a pause
        for each in partitions:
            each.paused = False

    # rebalances

    def _on_assign(self, client: Consumer, given: Sequence[TopicPartition]) -> None:
        self.membership.assigned()
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
        if len(partitions) >= len(self._state.assignment.partitions):
            self.membership.wait()
        undone = self._state.drop(partitions)
        self._emit(PartitionsRevoked(sorted(partition.name for partition in partitions), lost, undone))


def _of(partition: Partition) -> TopicPartition:
    position = partition.offsets.position
    return TopicPartition(partition.topic, partition.number, OFFSET_INVALID if position is None else position)


def _found(state: KafkaState, taken: Sequence[TopicPartition]) -> list[Partition]:
    with state.lock:
        found = [state.assignment.partitions.get((it.topic, it.partition)) for it in taken]
        return [partition for partition in found if partition is not None]


def _names(given: Sequence[TopicPartition]) -> list[str]:
    return sorted(f"{it.topic}/{it.partition}" for it in given)
