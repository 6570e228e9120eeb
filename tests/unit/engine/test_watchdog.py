"""Deadlines and heartbeats, in virtual time."""

from __future__ import annotations

from typing import Any

from supervisor.engine.watchdog import RETIRE_SECONDS, Watchdog
from supervisor.events import JobStarted, LoopGap
from supervisor.jobs import Cause
from supervisor.workers.interface import State
from supervisor.workers.slot import WorkerSlot
from tests.unit.fakes import FakeWorker, make_lease
from tests.unit.workers.test_pool import Setup


class Watched(Setup):
    def __init__(self, count: int = 1, heartbeat_timeout: float | None = 30.0, **options: Any) -> None:
        super().__init__(count, **options)
        self.gaps: list[bool] = []
        self.suspended = 3600.0  # long before this supervisor started
        self.watchdog = Watchdog(
            self.pool,
            self.bus,
            self.timer,  # type: ignore[arg-type]
            heartbeat_timeout,
            woke_from_gap=lambda: self.gaps.append(True),
            suspended=lambda: self.suspended,
        )
        self.watchdog.start()

    @property
    def process(self) -> FakeWorker:
        """The first one, also after it was killed and another is in its place."""
        return self.backend.forked[0]

    def start(self, id: int = 1, **policy: Any) -> None:
        self.send(id, **policy)
        self.process.start_next()
        self.watchdog.work_sent(self.worker)

    def pass_time(self, seconds: float, heartbeats: bool = True, cpu: float = 0.0) -> None:
        """In steps, with a heartbeat and some CPU use in each."""
        step = 0.25
        for _ in range(round(seconds / step)):
            self.timer.advance(step)
            if self.process.cpu is not None:
                self.process.cpu += cpu * step
            if heartbeats:
                self.process.send_heartbeat()


def test_a_job_is_killed_at_its_deadline_and_not_before() -> None:
    here = Watched()
    here.start(timeout=2.0)
    here.timer.advance(1.999)
    assert here.process.killed == []
    here.timer.advance(0.002)
    assert here.process.killed == [True]
    here.process.die(signal="SIGKILL")
    assert here.failed() == [(1, Cause.TIMEOUT)]


def test_the_timeout_of_the_next_job_counts_from_its_own_start() -> None:
    here = Watched()
    here.send(1, 2, timeout=2.0)
    here.process.run_next()
    here.timer.advance(0.001)
    here.process.start_next()
    here.timer.advance(1.9)
    assert here.process.killed == []


def test_a_shorter_timeout_behind_a_long_one_is_not_missed() -> None:
    here = Watched()
    here.worker.send([make_lease(1, timeout=60.0), make_lease(2, timeout=0.5)])
    here.watchdog.work_sent(here.worker)
    here.process.run_next()
    here.watchdog.work_ended()
    here.process.start_next()
    here.timer.advance(0.501)
    assert here.process.killed == [True]


def test_no_timeout_is_no_limit() -> None:
    here = Watched()
    here.start(timeout=None)
    here.pass_time(24 * 3600 / 100)
    assert here.process.killed == [] and not here.process.retired


def test_jobs_behind_a_long_one_are_reclaimed() -> None:
    here = Watched()
    here.pool.others.times.learn("work", [0.0001])
    here.send(1, 2, 3)
    here.process.start_next()
    here.watchdog.work_sent(here.worker)
    here.timer.advance(WorkerSlot.blocked_after - 0.001)
    assert here.received.reclaimed == []
    here.timer.advance(0.002)
    assert [lease.id for lease in here.received.reclaimed] == [2, 3]


def test_the_start_of_a_running_job_is_reported_once() -> None:
    here = Watched()
    here.start()
    here.pass_time(3)
    assert [event.lease.id for event in here.events if isinstance(event, JobStarted)] == [1]


def test_the_start_of_a_job_that_its_worker_takes_late_is_reported_soon_after() -> None:
    here = Watched()
    here.send(1)
    here.watchdog.work_sent(here.worker)
    here.timer.advance(WorkerSlot.blocked_after + 0.001)
    here.process.start_next()
    assert not [event for event in here.events if isinstance(event, JobStarted)]
    here.timer.advance(WorkerSlot.blocked_after + 0.001)
    assert [event.lease.id for event in here.events if isinstance(event, JobStarted)] == [1]


def test_a_worker_that_is_retired_while_it_imports_needs_no_heartbeat() -> None:
    here = Watched(heartbeat_timeout=2.0)
    here.worker.state, here.worker.ready_at = State.STARTING, None
    here.worker.retire()
    here.pass_time(RETIRE_SECONDS - 1.0, heartbeats=False)
    assert here.process.killed == []
    here.pass_time(2.0, heartbeats=False)
    assert len(here.process.killed) == 1


def test_the_time_after_the_end_is_no_gap() -> None:
    here = Watched()
    here.watchdog.stop()
    here.timer.stand_still(60.0)
    assert not here.watchdog.late()


def test_a_worker_without_heartbeat_and_cpu_time_is_killed() -> None:
    here = Watched()
    here.start(timeout=None, heartbeat_timeout=2.0)
    here.pass_time(1.75, heartbeats=False)
    assert here.process.killed == []
    here.pass_time(1.0, heartbeats=False)
    assert here.process.killed == [True]
    here.process.die(signal="SIGKILL")
    assert here.failed() == [(1, Cause.HEARTBEAT_LOST)]


def test_a_worker_without_heartbeat_is_not_killed_while_its_cpu_time_grows() -> None:
    here = Watched()
    here.start(timeout=None, heartbeat_timeout=2.0)
    here.pass_time(60, heartbeats=False, cpu=1.0)
    assert here.process.killed == []


def test_a_worker_without_heartbeat_that_uses_cpu_time_without_a_job_is_killed() -> None:
    here = Watched(heartbeat_timeout=2.0)
    here.send(1, timeout=None, heartbeat_timeout=2.0)
    here.watchdog.work_sent(here.worker)
    here.pass_time(3.0, heartbeats=False, cpu=1.0)
    assert len(here.process.killed) == 1
    assert [lease.id for lease in here.received.reclaimed] == [1]
    here.process.die(signal="SIGKILL")
    assert here.failed() == []


def test_a_worker_with_heartbeat_is_not_killed_without_cpu_time() -> None:
    here = Watched()
    here.start(timeout=None, heartbeat_timeout=2.0)
    here.pass_time(60)
    assert here.process.killed == []


def test_an_idle_worker_without_heartbeat_is_replaced() -> None:
    here = Watched(heartbeat_timeout=2.0)
    here.pass_time(3, heartbeats=False)
    assert len(here.process.killed) == 1


def test_a_worker_needs_no_heartbeat_if_there_is_no_limit() -> None:
    here = Watched(heartbeat_timeout=None)
    here.pass_time(600, heartbeats=False)
    assert here.process.killed == []


def test_a_gap_of_the_supervisor_counts_neither_for_timeouts_nor_for_heartbeats() -> None:
    here = Watched()
    here.start(timeout=2.0, heartbeat_timeout=2.0)
    here.pass_time(1.0)
    here.timer.stand_still(90)
    here.timer.advance(0)
    assert here.gaps == [True]
    assert any(isinstance(event, LoopGap) and event.seconds > 88 for event in here.events)
    here.pass_time(0.75)
    assert here.process.killed == []
    here.pass_time(1.25)
    assert here.process.killed == [True]


def test_replies_written_during_a_gap_are_read_before_deadlines_are_checked() -> None:
    here = Watched()
    here.start(timeout=2.0)
    here.process.finish()
    here.timer.stand_still(90)
    here.timer.advance(0)
    assert here.process.killed == []
    assert [outcome.lease.id for outcome in here.received.outcomes] == [1]


def test_timeouts_of_all_workers_at_once_kill_all_of_them() -> None:
    here = Watched(count=4)
    for number, worker in enumerate(here.pool.workers.values(), 1):
        worker.send([make_lease(number, timeout=1.0)])
        here.watchdog.work_sent(worker)
    for process in list(here.backend.forked):
        process.start_next()
    here.timer.advance(1.001)
    for process in here.backend.forked[:4]:
        assert process.killed == [True]
        process.die(signal="SIGKILL")
    assert sorted(here.failed()) == [(n, Cause.TIMEOUT) for n in (1, 2, 3, 4)]
    assert len(here.pool.workers) == 4


def test_a_silent_worker_that_has_answered_meanwhile_is_not_killed() -> None:
    here = Watched()
    here.start(1)
    here.process.finish(took=30.0)  # in its channel, not read yet
    here.pass_time(31.0, heartbeats=False)
    assert here.process.killed == []
    assert [outcome.lease.id for outcome in here.received.outcomes] == [1]


def test_a_silent_worker_that_has_not_begun_its_job_is_killed_and_the_job_runs_elsewhere() -> None:
    here = Watched()
    here.send(1)
    here.pass_time(31.0, heartbeats=False)
    assert here.process.killed == [True]
    assert [lease.id for lease in here.received.reclaimed] == [1]


def test_a_worker_that_does_not_take_its_job_is_replaced_and_killed_and_nobody_is_blamed() -> None:
    here = Watched(heartbeat_timeout=None)
    here.send(1, timeout=None)
    hung = here.process
    here.watchdog.work_sent(here.worker)
    here.pass_time(RETIRE_SECONDS + 2)
    assert [lease.id for lease in here.received.reclaimed] == [1]
    assert here.backend.forked[1:] and hung.retired and not hung.killed
    here.pass_time(RETIRE_SECONDS + 2)
    assert hung.killed
    assert here.failed() == []


def test_a_worker_that_does_not_take_its_job_within_the_timeout_is_replaced() -> None:
    here = Watched()
    here.send(1, timeout=2.0)
    hung = here.process
    here.watchdog.work_sent(here.worker)
    here.timer.advance(2.1)
    assert [lease.id for lease in here.received.reclaimed] == [1]
    assert hung.retired and not hung.killed and len(here.backend.forked) == 2


def test_a_retired_worker_that_does_not_exit_after_its_last_job_is_killed() -> None:
    here = Watched()
    here.start(1, timeout=None)
    here.worker.retire()
    here.pass_time(RETIRE_SECONDS * 3)
    assert here.process.killed == []
    here.process.finish()
    here.process.drain()
    retiring = here.process
    here.pass_time(RETIRE_SECONDS - 1)
    assert retiring.killed == []
    here.pass_time(2)
    assert retiring.killed
    assert here.failed() == []


def test_nothing_is_remembered_of_silent_workers_that_exited() -> None:
    here = Watched()
    here.start(timeout=None)
    here.pass_time(10.0, heartbeats=False)
    assert list(here.watchdog._cpu) == [1]
    here.process.die(signal="SIGKILL")
    here.timer.advance(2.0)
    assert here.watchdog._cpu == {}


def test_silence_from_before_a_job_was_sent_does_not_count_against_it() -> None:
    here = Watched()
    here.timer.advance(0.9)  # heartbeats come at the general interval
    here.start(heartbeat_timeout=0.6)
    here.timer.advance(0.5)
    assert here.process.killed == []
    here.timer.advance(0.3)
    assert here.process.killed == [True]


def test_silence_from_before_a_job_was_sent_does_not_count_against_a_worker_that_has_not_begun_it() -> None:
    here = Watched()
    here.timer.advance(0.9)
    here.send(1, heartbeat_timeout=0.6)
    here.watchdog.sweep()
    assert here.process.killed == []


def test_a_worker_that_pauses_after_a_long_stretch_in_c_has_its_whole_limit_from_then_on() -> None:
    here = Watched()
    here.start(timeout=None, heartbeat_timeout=2.0)
    here.pass_time(60, heartbeats=False, cpu=1.0)
    here.pass_time(1.75, heartbeats=False)
    assert here.process.killed == []
    here.pass_time(1.0, heartbeats=False)
    assert here.process.killed == [True]


def test_each_suspension_of_the_machine_is_one_gap_and_an_earlier_one_is_none() -> None:
    here = Watched()
    here.pass_time(3.0)
    assert here.gaps == []
    here.suspended += 90.0
    here.pass_time(3.0)
    assert here.gaps == [True]


def test_a_gap_does_not_count_for_a_worker_that_is_about_to_exit() -> None:
    here = Watched(heartbeat_timeout=None)
    here.worker.retire()
    here.timer.stand_still(90)
    here.pass_time(RETIRE_SECONDS - 1)
    assert here.process.killed == []
    here.pass_time(2)
    assert here.process.killed == [False]


def test_nothing_is_killed_after_a_stop() -> None:
    here = Watched()
    here.start(timeout=2.0)
    here.watchdog.stop()
    here.timer.advance(60.0)
    assert here.process.killed == []
