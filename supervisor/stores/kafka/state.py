"""The jobs of the assigned partitions, in memory: each transaction ends with the offsets that it has done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from supervisor.jobs import JobState
from supervisor.stores.kafka.partitions import Assignment, Partition, Record
from supervisor.stores.kafka.values import UNREADABLE, created_at, handler_of, headers_of, payload_of
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.other_records import DeadLetterRecord
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.records import EnqueueRow

MAX_ENDED_BYTES = 8_000_000
"""Payloads of failed and cancelled jobs that are kept to be shown."""
MAX_ENDED = 1000


class KafkaState(MemoryState):
    """`handlers` has the handler of each topic, or None if a header of the record names it.

    All methods may be called on any thread. `require_available` raises StoreUnavailable while no transaction may begin.
    """

    def __init__(
        self, assignment: Assignment, handlers: Mapping[str, str | None], header: str, value: str,
        *, clock: Callable[[], float] = time.time, require_available: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(clock)
        self.assignment = assignment
        self.require_available = require_available
        self.on_ready: Callable[[], None] = lambda: None
        """Called when jobs have become ready outside of a claim."""
        self._handlers, self._header, self._value = handlers, header, value
        self._to_finish: dict[int, None] = {}  # jobs that the open transaction has ended
        self._shown: dict[int, int] = {}  # ids of ended jobs that can still be shown, the oldest first, and their bytes
        self._shown_bytes = 0
        self._idle = threading.Condition(self.lock)

    @contextmanager
    def transaction(self, *, single: bool = False, brief: bool = False) -> Iterator[None]:
        with self.lock:
            if self._before is not None:
                with super().transaction():
                    yield
                return
            self.require_available()
            self._to_finish.clear()
            with super().transaction():
                yield
            self._finish_ended()

    def candidates(self, queue: str, tier: int, limit: int) -> list[JobRecord]:
        found = super().candidates(queue, tier, limit)
        if self._is_leaving():  # a job of such a partition may have become ready in the open transaction
            return [job for job in found if not self.assignment.records[job.id].partition.leaving]
        return found

    def _ended(self, job: JobRecord) -> None:
        self._to_finish[job.id] = None

    def add_records(self, records: Iterable[Record]) -> None:
        """Take fetched records; those that need not wait for another become ready."""
        ready, now = [], self.now()
        for record in records:
            if record.id in self.jobs or record.id in self._shown:
                self._forget_ended(record.id)
            if self.assignment.add(record):
                ready.append((record, self._row(record)))
        for record, row in ready:
            self._make_ready(record, row, now)
        if ready:
            self.on_ready()

    def _row(self, record: Record) -> EnqueueRow:
        topic = record.partition.topic
        headers = headers_of(
            record.headers, topic=topic, partition=record.partition.number, offset=record.offset, key=record.key,
            timestamp=record.timestamp,
        )  # fmt: skip
        handler = self._handlers.get(topic) or handler_of(record.headers, self._header)
        payload = UNREADABLE if record.unreadable else payload_of(record.value, self._value)
        return EnqueueRow(handler, payload, topic, headers=headers)

    def _make_ready(self, record: Record, row: EnqueueRow, now: int) -> None:
        created = created_at(record.timestamp, now)
        token = record.partition.token
        # The tokens of its dead letters begin there too: an acceptance of an earlier assignment is stale.
        none_yet = DeadLetterRecord(now, token, state=None)
        self.add(JobRecord(
            record.id, row, now, created, JobState.READY, age=self.next_age(), token=token, dead_letter=none_yet,
        ))  # fmt: skip

    # the end of jobs

    def _finish_ended(self) -> None:
        """Mark the offsets of ended jobs as done, and make the next records of their lines ready."""
        woken = False
        records = self.assignment.records
        for id in self._to_finish:
            job = self.jobs.get(id)  # None if it was pruned in the same transaction
            if job is not None and job.state is not JobState.SUCCEEDED and not _is_over(job):
                continue
            if id not in records:
                continue
            following = self.assignment.done(id)
            if following is not None:
                self._make_ready(following, self._row(following), self.now())
                woken = True
            if job is not None:
                self._keep_or_remove(job)
        self._to_finish.clear()
        if self._is_leaving():
            self._remove_waiting()
            self._idle.notify_all()
        if woken:
            self.on_ready()

    def _keep_or_remove(self, job: JobRecord) -> None:
        """Keep failed and cancelled jobs for a while, to be shown."""
        if job.state is JobState.SUCCEEDED:
            self.remove(job)
            return
        size = len(job.row.payload)
        self._shown[job.id] = size
        self._shown_bytes += size
        while len(self._shown) > MAX_ENDED or self._shown_bytes > MAX_ENDED_BYTES:
            self._forget_ended(next(iter(self._shown)))

    def _forget_ended(self, id: int) -> None:
        """Show an ended job no longer, at the latest when its record is fetched again: a change of it, such as a late report, would be
        one of the record, which may still wait in its line."""
        self._shown_bytes -= self._shown.pop(id, 0)
        if (ended := self.jobs.get(id)) is not None:
            self.remove(ended)

    # the end of an assignment

    def give_up(
        self, partitions: Collection[Partition], timeout: float, hurry: Callable[[], bool] = lambda: False
    ) -> None:
        """Start no further job of these partitions, and wait until none of them is running or is being published as a dead letter,
        for at most `timeout` seconds, or until `hurry` is true (`woke`)."""
        with self.lock:
            for partition in partitions:
                partition.leaving = True
            self._remove_waiting()
            self._idle.wait_for(lambda: hurry() or not self._is_busy(partitions), timeout)

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait on the thread of a transaction until another thread has made the condition true (`woke`). Meanwhile the lock is free,
        also if this thread has a transaction open."""
        with self._idle:
            return self._idle.wait_for(condition, timeout)

    def woke(self) -> None:
        with self._idle:
            self._idle.notify_all()

    def drop(self, partitions: Collection[Partition]) -> int:
        """Forget the partitions and their jobs: outcomes of these are stale from now on. Return how many records were not done."""
        with self.lock:
            dropped = self.assignment.drop(partitions)
            for record in dropped:
                if record.id in self.jobs:
                    self.remove(self.jobs[record.id])
            self.forget_stale_entries()
            if dropped:
                self.on_ready()  # the engine looks which leases it still has
            return len(dropped)

    def _is_busy(self, partitions: Collection[Partition]) -> bool:
        return any(
            record.id in self.jobs for record in self.assignment.records.values() if record.partition in partitions
        )

    def _is_leaving(self) -> bool:
        return any(partition.leaving for partition in self.assignment.partitions.values())

    def _remove_waiting(self) -> None:
        """Remove the jobs of leaving partitions that do not run."""
        for record in self.assignment.records.values():
            job = self.jobs.get(record.id)
            if record.partition.leaving and job is not None and job.state in (JobState.READY, JobState.SCHEDULED):
                self.remove(job)


def _is_over(job: JobRecord) -> bool:
    return job.state.terminal and job.dead_letter_state != "pending"
