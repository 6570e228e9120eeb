"""Jobs that are sent to an async worker before it may start them: a few, only while jobs are short, and never for long."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from supervisor.events import JobStarted
from supervisor.workers.async_worker import LOOK_SECONDS
from supervisor.workers.async_workers import AsyncOptions
from supervisor.workers.interface import Reply
from supervisor.workers.sent_ahead import QUICK_SECONDS
from tests.unit.fakes import FakeWorker, make_lease
from tests.unit.workers.test_pool import Setup

CONCURRENCY = 4


class Jobs:
    """The async jobs of a scripted worker, which takes permits in their order as far as it may run more jobs."""

    def __init__(self) -> None:
        self.last = 0
        self.permits: deque[int] = deque()
        self.looks = 0

    def send_job(self, lease: Any) -> int:
        self.last += 1
        self.permits.append(self.last)
        return self.last

    def take(self, count: int) -> None:
        for _ in range(count):
            self.permits.popleft()

    def reclaim_frames(self, wanted: Any, sent: Any) -> set[int]:
        reclaimed = {frame for frame in self.permits if frame in wanted}
        self.permits = deque(frame for frame in self.permits if frame not in wanted)
        return reclaimed

    def untaken_frames(self, sent: Any) -> set[int]:
        self.looks += 1
        return {*self.permits}

    def cancel(self, frame: int, *, of_job: bool = False) -> None: ...


class Async(Setup):
    def __init__(self, **options: Any) -> None:
        super().__init__(0, **options)
        self.jobs = Jobs()
        fork = self.backend.fork

        def fork_async(number: int, listener: Any, concurrency: int = 0) -> FakeWorker:
            process = fork(number, listener)
            process.async_jobs = self.jobs  # type: ignore[attr-defined]
            return process

        self.backend.fork = fork_async  # type: ignore[method-assign,assignment]
        self.workers = self.pool.async_workers
        self.workers.limits = self.pool.limits
        self.workers.options = AsyncOptions(1, CONCURRENCY)
        self.workers.fill()
        (self.async_worker,) = self.workers.workers
        self.async_worker.ready()

    def fill(self, first_id: int) -> list[int]:
        """Send as many jobs as there is room for, and return their ids."""
        slots = self.workers.slots_with_room()
        assert len(slots) == self.workers.room()
        for id, slot in enumerate(slots, first_id):
            slot.send([make_lease(id)])
        return [*range(first_id, first_id + len(slots))]

    def reply(self, *ids: int, took: float = 0.001) -> None:
        self.async_worker.replied([Reply(id, "ok", took, None, None) for id in ids])

    def slot_of(self, id: int) -> Any:
        return self.pool.slot_of(id)


def quick_worker(**options: Any) -> Async:
    """Return a worker that has run jobs of a millisecond, and runs as many as it may."""
    here = Async(**options)
    assert here.fill(1) == [1, 2, 3, 4]
    here.jobs.take(4)
    here.reply(1, 2, 3, 4)
    return here


def test_a_quarter_more_jobs_are_sent_once_jobs_are_known_to_be_short() -> None:
    here = quick_worker()
    assert here.fill(11) == [11, 12, 13, 14, 15]
    assert here.workers.room() == 0
    here.jobs.take(4)
    here.reply(11, took=100 * QUICK_SECONDS)
    assert here.workers.room() == 0
    here.reply(12, took=100 * QUICK_SECONDS)
    assert here.workers.room() == 1, "as one job ends, and the last has started"


def test_the_time_of_a_job_sent_ahead_begins_when_another_has_ended() -> None:
    here = quick_worker()
    here.fill(11)
    here.jobs.take(4)
    here.timer.advance(0.010)
    sent_at = here.slot_of(15).started
    assert not here.slot_of(15).has_taken()
    here.jobs.take(1)
    here.reply(12)
    assert here.slot_of(15).started == pytest.approx(sent_at + 0.010)
    assert here.slot_of(15).has_taken()


def test_a_job_sent_ahead_that_waits_is_reclaimed_and_none_is_sent_ahead_until_a_job_ends() -> None:
    here = quick_worker()
    here.fill(11)
    here.jobs.take(4)
    for id in (11, 15):
        here.slot_of(id).report_started()
    assert [lease.id for lease in here.received.reclaimed] == [15]
    assert [event.lease.id for event in here.events if isinstance(event, JobStarted)] == [11]
    assert here.workers.room() == 0
    here.reply(11)
    assert here.workers.room() == 2


def test_a_job_sent_ahead_that_has_started_is_not_reclaimed() -> None:
    here = quick_worker()
    here.fill(11)
    here.jobs.take(5)
    for _ in range(2):
        here.slot_of(15).report_started()
    assert here.received.reclaimed == []
    assert [event.lease.id for event in here.events if isinstance(event, JobStarted)] == [15]


def test_the_time_of_a_job_sent_ahead_that_was_seen_to_run_does_not_begin_anew() -> None:
    here = quick_worker()
    here.fill(11)
    here.jobs.take(5)
    assert here.slot_of(11).has_taken(), "a look at one job is one at all of them"
    sent_at = here.slot_of(15).started
    here.timer.advance(0.020)
    for _ in range(2):
        here.slot_of(15).report_started()
    assert [event.lease.id for event in here.events if isinstance(event, JobStarted)] == [15]
    here.reply(12)
    assert here.slot_of(15).started == sent_at


def test_no_more_jobs_are_sent_than_the_worker_may_run_in_its_life() -> None:
    here = quick_worker(max_jobs=7)
    assert here.fill(11) == [11, 12, 13]
    assert here.workers.room() == 0


def test_if_its_worker_exits_a_job_sent_ahead_is_no_suspect() -> None:
    here = quick_worker()
    here.fill(11)
    here.jobs.take(4)
    here.async_worker.exited()
    assert [lease.id for lease in here.received.reclaimed] == [15]


def test_which_jobs_have_started_is_looked_up_for_all_of_them_at_once() -> None:
    here = Async()
    here.fill(1)
    here.jobs.take(2)
    assert [here.slot_of(id).has_taken() for id in (1, 2, 3, 4)] == [True, True, False, False]
    assert here.jobs.looks == 1
    here.jobs.take(2)
    here.timer.advance(2 * LOOK_SECONDS)
    assert all(here.slot_of(id).has_taken() for id in (1, 2, 3, 4))
    assert here.jobs.looks == 2
