"""The thread that reads the topics: it polls at all times, so that the group keeps its partitions however long a job runs.

A partition whose share of the buffer is used up is paused, not left unread. All callbacks of the Kafka client run on this thread.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from supervisor.config.kafka import KafkaSettings
from supervisor.kafka.client import client_settings, headers_of
from supervisor.kafka.errors import ErrorTexts
from supervisor.kafka.events import GroupEvent, GroupProblem
from supervisor.stores.kafka.client_check import usual_settings
from supervisor.stores.kafka.commits import Commits
from supervisor.stores.kafka.connection import Connection
from supervisor.stores.kafka.ends import at_position
from supervisor.stores.kafka.figures import Figures
from supervisor.stores.kafka.ids import job_ids
from supervisor.stores.kafka.membership import Membership
from supervisor.stores.kafka.partitions import Partition, Record, line_of
from supervisor.stores.kafka.rebalances import Rebalances
from supervisor.stores.kafka.resets import ResetLimits, Resets
from supervisor.stores.kafka.state import KafkaState
from supervisor.stores.problems import Problem
from supervisor.threads import start_thread

logger = logging.getLogger("supervisor")


class ConsumerLimits(NamedTuple):
    """Times are seconds; the others are parts of a partition's share of the buffer."""

    batch: int = 500  # messages, at most, that are taken from the client at once
    poll: float = 0.1  # for the first message
    pause_at: float = 1.0
    resume_at: float = 0.5
    uncommitted: float = 10.0  # with failing commits, until they are a problem
    join: float = 60.0  # until the group should have given partitions
    settle: float = 5.0  # beyond store.revoke_timeout, until an assignment without partitions is believed
    recent: float = 30.0  # for which an error of the client is a problem
    resets: ResetLimits = ResetLimits()


USUAL_LIMITS = ConsumerLimits()
NOT_COMMITTED = "records that are done may be run again"
COMMITS_FAIL = "look at the brokers; records that are done are run again if this supervisor ends before a commit"
_BROKERS_DOWN = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})


class GroupConsumer:
    """Reads the records of the assigned partitions into `state`, and commits what is done there."""

    def __init__(
        self, settings: KafkaSettings, state: KafkaState, emit: Callable[[GroupEvent], None],
        limits: ConsumerLimits = USUAL_LIMITS,
    ) -> None:  # fmt: skip
        self._settings, self._state, self._emit, self._limits = settings, state, emit, limits
        self._job_id = job_ids(settings.topics)
        self._texts = texts = ErrorTexts(settings.bootstrap, settings.kafka)
        self._client = Consumer(self._client_settings())
        self.connection = Connection(self._client, settings.topics, texts)
        self._commits = Commits(self._client, state, settings.commit_interval, emit, texts)
        self.figures = Figures(self._client, state, self._job_id, emit)
        self._stopping = threading.Event()
        self._stop_until = math.inf
        self._ended = False
        self._largest = 0  # bytes of the largest record that was read last
        self.membership = Membership(
            settings.group,
            lambda: bool(state.assignment.partitions),
            settings.revoke_timeout + limits.settle,
            limits.join,
        )
        self._rebalances = Rebalances(
            self._client, state, self.connection, self._commits, self.membership, settings.revoke_timeout, emit,
            self._client_failed, self._stopping.is_set,
        )  # fmt: skip
        self._resets = Resets(
            self._client, state, self.connection, self._rebalances, settings.kafka, emit, self._client_failed,
            limits.resets,
        )  # fmt: skip
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
            with suppress(Exception):
                self._client.close()  # otherwise it would keep its partitions for `max.poll.interval.ms`
        finally:
            self._ended = True
            self._state.woke()

    def _serve(self) -> None:
        rebalances = self._rebalances
        self._client.subscribe(
            list(self._settings.topics),
            on_assign=rebalances.on_assign,
            on_revoke=rebalances.on_revoke,
            on_lost=rebalances.on_lost,
        )
        while not self._stopping.is_set():
            self._read()
            self._resets.reset_if_due()
            self._pause_and_resume()
            self._commits.commit_if_due()
            self.figures.report_if_due()
            self.connection.look()
            if self.connection.answers:
                self.membership.report_if_late()
        # Here, since a client that closes commits no more.
        rebalances.give_up(list(self._state.assignment.partitions.values()))
        self._client.close()

    def _read(self) -> None:
        first = self._client.poll(self._limits.poll)
        if first is None:
            return
        if _is_answer(first):
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
            self._client.pause([at_position(partition) for partition in pausing])
        for partition in resuming:
            self._resume(partition)
        for partition in (*pausing, *resuming):
            partition.paused = not partition.paused

    def _resume(self, partition: Partition) -> None:
        """Read the partition again. The client would begin up to a second later, unless it gets the offset."""
        self._client.resume([at_position(partition)])
        if partition.offsets.position is not None:
            with suppress(KafkaException):  # the client does not read it yet
                self._client.seek(at_position(partition))

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
            self._resets.refused(partition, message.offset())
        else:
            self._client_failed(error)


def _is_answer(message: Message) -> bool:
    """Return whether a broker has sent it: the client makes most errors itself, also if no broker answers."""
    error = message.error()
    return error is None or error.code() == KafkaError._PARTITION_EOF
