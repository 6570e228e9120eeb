"""Workers past their age are replaced after their job, and workers past the hard limit of memory are killed at once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from supervisor.config.settings import WorkerSettings
from supervisor.engine.limit_watch import MEMORY_INTERVAL, LimitWatch
from supervisor.events import WorkerWarning
from supervisor.jobs import Cause, Kind
from supervisor.retry import SUSPECT
from supervisor.workers.async_workers import AsyncOptions
from supervisor.workers.interface import Reply
from supervisor.workers.task_slot import TaskSlot
from tests.unit.fakes import FakeWorker, make_lease
from tests.unit.workers.test_pool import Setup

MB = 1_000_000


class Jobs:
    """The async jobs of a scripted worker: each is taken at once."""

    def __init__(self) -> None:
        self.frames = 0

    def send_job(self, lease: Any) -> int:
        self.frames += 1
        return self.frames

    def reclaim_frames(self, wanted: Any, sent: Any) -> set[int]:
        return set()

    def untaken_frames(self, sent: Any) -> set[int]:
        return set()


class Watched(Setup):
    def __init__(self, count: int = 1, *, async_workers: int = 0, random: float = 0.0, **settings: Any) -> None:
        super().__init__(count, max_memory_hard=settings.get("max_memory_hard"))
        backend = self.backend
        backend.fork_plain, backend.fork = backend.fork, self.fork_async  # type: ignore[attr-defined,method-assign]
        self.pool.async_workers.options = AsyncOptions(async_workers, concurrency=2)
        self.pool.async_workers.fill()
        self.watch = LimitWatch(self.pool, cast("Any", self.timer), lambda: random)
        self.watch.watch(WorkerSettings(**settings))

    def fork_async(self, number: int, listener: Any, concurrency: int = 0) -> FakeWorker:
        process: FakeWorker = self.backend.fork_plain(number, listener)  # type: ignore[attr-defined]
        process.async_jobs = Jobs()  # type: ignore[attr-defined]
        return process

    @property
    def tasks(self) -> list[TaskSlot]:
        return sorted(self.pool.async_workers.slots, key=id)

    def released(self) -> list[int]:
        return [o.lease.id for o in self.received.outcomes if o.kind is Kind.RELEASED]

    def warnings(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, WorkerWarning)]


def test_without_a_limit_nothing_is_looked_at() -> None:
    here = Watched()
    assert here.watch._timer is None


def test_an_idle_worker_is_replaced_at_its_age_and_a_busy_one_after_its_job() -> None:
    here = Watched(count=2, max_age=100.0)
    idle, busy = here.backend.forked
    here.pool.workers[busy.number].send([make_lease(1), make_lease(2)])
    busy.start_next()
    here.timer.advance(99.0)
    assert len(here.backend.forked) == 2
    here.timer.advance(2.0)
    assert idle.retired and busy.retired and len(here.backend.forked) == 4
    assert [lease.id for lease in here.received.reclaimed] == [2]
    busy.finish()
    busy.drain()
    for process in (idle, busy):
        process.die(exit_code=0)
    assert [o.lease.id for o in here.received.outcomes] == [1]
    assert here.exits() == [("max_age", "it is 1m 40s old, workers.max_age is 1m 40s")] * 2


@pytest.mark.parametrize(("random", "seconds"), [(0.0, 100), (0.5, 90), (1.0, 80)])
def test_a_worker_is_replaced_up_to_a_fifth_earlier(random: float, seconds: int) -> None:
    here = Watched(max_age=100.0, random=random)
    here.timer.advance(seconds - 0.5)
    assert len(here.backend.forked) == 1
    here.timer.advance(1.5)
    assert len(here.backend.forked) == 2


def test_no_worker_is_replaced_for_its_age_while_the_former_ones_still_run_their_last_jobs() -> None:
    here = Watched(max_age=10.0)
    here.send(1)
    here.process.start_next()
    here.timer.advance(12.0)
    here.process.come_up()
    here.timer.advance(36.0)
    assert len(here.backend.forked) == 2 and not here.process.retired
    here.backend.forked[0].die(exit_code=0)
    here.timer.advance(1.0)
    assert len(here.backend.forked) == 3


def test_an_async_worker_is_replaced_at_its_age_and_exits_after_its_jobs() -> None:
    here = Watched(async_workers=1, max_age=10.0)
    process = here.process
    process.come_up()
    task = here.tasks[0]
    task.send([make_lease(1)])
    here.timer.advance(11.0)
    assert [worker.leaving for worker in here.pool.async_workers.workers] == [True, False]
    assert not process.retired
    here.process.come_up()
    here.timer.advance(11.0)
    assert len(here.pool.async_workers.workers) == 2, "the old one has not exited"
    process.listener.replied([Reply(1, "ok", 0.001, None, None)])
    here.timer.advance(0.1)
    assert process.retired
    process.die(exit_code=0)
    assert ("max_age", "it is 10s old, workers.max_age is 10s") in here.exits()


def test_the_job_of_a_worker_past_the_hard_limit_fails_at_once_and_no_other() -> None:
    here = Watched(max_memory_hard=100 * MB)
    here.send(1, 2)
    large = here.process
    large.start_next()
    large.rss = 100 * MB
    here.timer.advance(MEMORY_INTERVAL)
    assert not large.killed
    large.rss = 250 * MB
    here.timer.advance(MEMORY_INTERVAL)
    assert large.killed == [False]
    large.die(signal="SIGKILL")
    assert here.failed() == [(1, Cause.MEMORY_LIMIT)]
    assert [lease.id for lease in here.received.reclaimed] == [2]
    (outcome,) = here.received.outcomes
    message = "its worker had 250MB, workers.max_memory_hard is 100MB; killed"
    assert outcome.failure is not None and outcome.failure.message == message
    assert here.exits() == [("memory_limit", message)]


def test_the_job_that_follows_the_one_that_took_the_memory_is_not_blamed() -> None:
    here = Watched(max_memory_hard=100 * MB)
    here.send(1, 2)
    large = here.process
    large.start_next()
    large.finish()
    large.start_next()
    large.rss = 150 * MB
    here.timer.advance(MEMORY_INTERVAL / 2)
    large.drain()
    assert large.retired
    here.timer.advance(MEMORY_INTERVAL)
    assert large.killed
    large.die(signal="SIGKILL")
    assert here.failed() == [] and here.released() == [2]


def test_an_idle_worker_that_is_as_large_as_at_its_start_is_warned_of_and_not_killed_again_and_again() -> None:
    here = Watched(max_memory_hard=100 * MB)
    here.process.rss = 120 * MB
    here.worker.memory_at_start = 119 * MB
    here.timer.advance(5 * MEMORY_INTERVAL)
    assert not here.process.killed
    assert here.warnings() == [
        "has 120MB without a job, and workers.max_memory_hard is 100MB: each of its jobs will be killed"
    ]


def test_a_worker_that_starts_or_runs_its_exit_functions_is_not_killed() -> None:
    here = Watched(max_memory_hard=100 * MB)
    here.process.rss = 150 * MB
    here.worker.retire()
    here.pool.fill()
    here.process.rss = 150 * MB
    here.timer.advance(MEMORY_INTERVAL)
    assert [process.killed for process in here.backend.forked] == [[], []]


def test_the_only_job_of_an_async_worker_past_the_hard_limit_is_blamed() -> None:
    here = Watched(async_workers=1, max_memory_hard=100 * MB)
    process = here.process
    process.come_up()
    here.tasks[0].send([make_lease(1)])
    process.rss = 150 * MB
    here.timer.advance(MEMORY_INTERVAL)
    assert process.killed == [False]
    process.die(signal="SIGKILL")
    assert here.failed() == [(1, Cause.MEMORY_LIMIT)]


def test_several_jobs_of_an_async_worker_past_the_hard_limit_are_suspects() -> None:
    here = Watched(async_workers=1, max_memory_hard=100 * MB)
    process = here.process
    process.come_up()
    for id, task in enumerate(here.tasks, 1):
        task.send([make_lease(id)])
    process.rss = 150 * MB
    here.timer.advance(2 * MEMORY_INTERVAL)
    assert process.killed == [False]
    process.die(signal="SIGKILL")
    assert here.received.outcomes == []
    assert sorted((lease.id, lease.expired_count) for lease in here.received.reclaimed) == [(1, SUSPECT), (2, SUSPECT)]
    assert here.warnings() == ["its worker had 150MB, workers.max_memory_hard is 100MB; killed"]


def test_a_reload_changes_the_limits_of_the_workers_that_run() -> None:
    here = Watched()
    here.timer.advance(50.0)
    here.watch.watch(WorkerSettings(max_age=20.0))
    here.timer.advance(1.0)
    assert len(here.backend.forked) == 2
    here.watch.watch(WorkerSettings())
    assert here.watch._timer is None
