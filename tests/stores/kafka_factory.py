"""A Kafka store for the suite: one supervisor has all partitions, and a record is read as soon as it is enqueued."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor.config.kafka import is_topic
from supervisor.errors import Unsupported
from supervisor.stores.kafka.group import Group
from supervisor.stores.kafka.ids import Place, job_id, place_of
from supervisor.stores.kafka.producing import Producing
from supervisor.stores.records import EnqueueRow
from supervisor.stores.sinks import Sinks
from tests.stores.factories import StoreFactory
from tests.stores.simulated_kafka import FedStore, Log, PartitionName, kafka_settings

OTHERWISE = {
    "a job's id is the place of its record, not 1": {
        "test_a_policy_first_seen_in_a_transaction_that_failed_is_written_again",
        "test_a_retry_made_due_now_stays_a_retry",
    },
    "its tokens begin with the number of the assignment": {"test_a_token_grows_at_every_claim"},
    "its jobs have the headers of their records": {"test_each_of_many_jobs_keeps_its_own_values"},
    "its dead letters have their records": {"test_a_dead_letter_is_the_job_as_people_see_it"},
    "it keeps neither jobs that have succeeded nor results": {
        "test_each_kind_of_end_has_its_outcome",
        "test_a_retry_is_no_end",
        "test_pruning_is_bounded_and_starts_with_the_job_that_ended_first",
        "test_jobs_that_have_changed_since_they_were_found_are_refused",
        "test_finished_jobs_are_listed_by_when_they_finished",
        "test_ended_jobs_are_found_by_the_time_of_their_creation",
        "test_pages_of_ended_jobs_have_each_job_once_in_the_order_in_which_they_ended",
        "test_retention_is_exact_across_the_change",
    },
    "the record of an ended job is done, so that it does not run again": {
        "test_the_outcome_of_a_cancelled_job_is_stale",
        "test_a_pending_dead_letter_is_dropped_only_by_force",
        "test_a_job_that_an_operator_runs_again_before_its_end_was_seen_is_waited_for",
        "test_a_job_that_an_operator_runs_again_between_the_queries_of_a_look_is_waited_for",
    },
    "a program that enqueues notifies nobody: the broker does": {
        "test_an_owner_with_all_the_notifications_it_can_hold_is_notified_already",
    },
    "it is no memory:// store, and has no parts of one": {
        "test_a_brief_list_has_the_last_error",
        "test_a_sink_is_dropped_from_a_dead_letter_that_another_supervisor_claims_at_this_moment",
    },
}
"""The tests of the suite that fail for a Kafka store, by what it does in another way. Where it declares that it can't do what a test
needs, by Unsupported, the test is skipped with the store's own reason."""


def otherwise(test: str) -> str | None:
    return next((reason for reason, tests in OTHERWISE.items() if test in tests), None)


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
