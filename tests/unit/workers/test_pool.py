"""The pool and its slots: exactly the running job is blamed for the end of its worker, and no job that did not start."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.events import Bus, JobStarted, WorkerExited, WorkerLogged, WorkerOutput, WorkerWarning
from supervisor.jobs import Cause, JobState, Kind, Lease, Outcome
from supervisor.workers.blame import CANCELLED, LEASE_LOST, SHUTDOWN, STATUS_LOWERED, timed_out
from supervisor.workers.interface import ExitReport, OutputLines, Reply, State, WorkerRecord, Written
from supervisor.workers.limits import Limits
from supervisor.workers.pool import HOOK_SECONDS, REPLACE_INTERVAL, Pool
from supervisor.workers.reforks import REFORK_DELAYS
from supervisor.workers.reply_check import MAX_REPEATED, REPEATED
from supervisor.workers.run_times import FRAME_JOBS
from supervisor.workers.slot import MEMORY_CHECK_INTERVAL, WorkerSlot
from tests.unit.fakes import FakeBackend, FakeTimer, FakeWorker, make_lease


class Recorder:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.reclaimed: list[Lease] = []
        self.written: list[tuple[int, Written]] = []

    def jobs_ended(self, outcomes: list[Outcome]) -> None:
        self.outcomes += outcomes

    def jobs_reclaimed(self, leases: list[Lease]) -> None:
        self.reclaimed += leases

    def job_wrote(self, lease: Lease, written: Written) -> None:
        self.written.append((lease.id, written))

    def workers_changed(self) -> None:
        pass

    def plugins_reported(self, reports: Sequence[Any]) -> None:
        pass


class Setup:
    def __init__(self, count: int = 1, **options: Any) -> None:
        self.timer, self.received, self.bus, self.events = FakeTimer(), Recorder(), Bus(), []
        self.bus.subscribe(self.events.append)
        self.pool = Pool(count, self.bus, self.timer, **options)
        self.backend = FakeBackend()
        self.pool.open(self.backend, self.received)
        for process in self.backend.forked:
            process.come_up()

    @property
    def worker(self) -> WorkerSlot:
        return next(iter(self.pool.workers.values()))

    @property
    def process(self) -> FakeWorker:
        return self.backend.forked[-1]

    def send(self, *ids: int, **lease: Any) -> None:
        self.worker.send([make_lease(id, **lease) for id in ids])

    def exits(self) -> list[tuple[str, str]]:
        return [(event.cause, event.how) for event in self.events if isinstance(event, WorkerExited)]

    def failed(self) -> list[tuple[int, Cause]]:
        return [(o.lease.id, o.failure.cause) for o in self.received.outcomes if o.failure is not None]


def test_a_reply_ends_the_first_job_sent() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.run_next()
    assert [(o.lease.id, o.kind, o.state) for o in here.received.outcomes] == [(1, Kind.SUCCEEDED, JobState.SUCCEEDED)]


def test_output_has_the_handler_of_its_job_also_if_it_is_read_after_the_reply() -> None:
    here = Setup()
    here.send(1, handler="mail")
    here.send(2, handler="pdf")
    here.process.run_next()
    for job_id in (1, 2, None):
        here.worker.output(OutputLines("stdout", job_id, ["x"]))
    outputs = [event for event in here.events if isinstance(event, WorkerOutput)]
    assert [(event.job_id, event.handler) for event in outputs] == [(1, "mail"), (2, "pdf"), (None, None)]


def test_a_job_runs_once_its_worker_has_taken_its_permit() -> None:
    here = Setup()
    here.send(1, 2)
    here.worker.report_started()
    assert not [*here.pool.running()]
    here.process.start_next()
    here.worker.report_started()
    assert [lease.id for _, lease in here.pool.running()] == [1]
    here.process.finish()
    here.process.drain()
    assert not [*here.pool.running()]
    here.process.start_next()
    assert [lease.id for _, lease in here.pool.running()] == [2]
    assert [event.lease.id for event in here.events if isinstance(event, JobStarted)] == [1]


def test_the_running_job_is_blamed_and_the_jobs_behind_it_are_reclaimed() -> None:
    here = Setup()
    here.send(1, 2, 3)
    here.process.run_next()
    here.process.start_next()
    here.process.die(signal="SIGSEGV")
    assert here.failed() == [(2, Cause.CRASH)]
    assert [lease.id for lease in here.received.reclaimed] == [3]


def test_no_job_is_blamed_when_a_worker_exits_between_jobs() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.run_next()
    here.process.die(signal="SIGKILL")
    assert here.failed() == []
    assert [lease.id for lease in here.received.reclaimed] == [2]


def test_a_reply_that_is_in_the_channel_at_the_exit_counts() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.start_next()
    here.process.finish()
    here.process.die(exit_code=0)
    assert [o.lease.id for o in here.received.outcomes if o.kind is Kind.SUCCEEDED] == [1]
    assert here.failed() == []


@given(st.lists(st.sampled_from(["send", "start", "finish", "read", "reclaim"]), max_size=60), st.integers(1, 5))
def test_no_job_is_lost_and_only_a_started_one_is_blamed_whatever_happens(steps: list[str], frame: int) -> None:
    here = Setup()
    process, worker, sent, started, next_id = here.process, here.worker, 0, set(), 1
    running = False
    for step in steps:
        if step == "send" and len(worker.sent) < 30:
            here.send(*range(next_id, next_id + frame))
            next_id += frame
            sent += frame
        elif step == "start" and process.permits and not running:
            started.add(process.start_next().id)
            running = True
        elif step == "finish" and running:
            process.finish()
            running = False
        elif step == "read":
            process.drain()
        elif step == "reclaim":
            here.pool.reclaim_unstarted()
    process.die(signal="SIGKILL")
    succeeded = [o.lease.id for o in here.received.outcomes if o.kind is Kind.SUCCEEDED]
    blamed = [id for id, _ in here.failed()]
    returned = [lease.id for lease in here.received.reclaimed]
    assert sorted(succeeded + blamed + returned) == list(range(1, sent + 1))
    assert set(succeeded + blamed) == started
    assert len(blamed) == running


def test_unstarted_jobs_are_reclaimed_from_behind_a_long_one() -> None:
    here = Setup()
    here.send(1, 2, 3)
    here.process.start_next()
    here.timer.advance(0.5)
    here.worker.reclaim_blocked()
    assert [lease.id for lease in here.received.reclaimed] == [2, 3]
    assert here.pool.others.times.of("work") == 0.5
    here.process.finish()
    here.process.drain()
    assert [o.lease.id for o in here.received.outcomes] == [1]


def test_replies_are_read_before_a_worker_is_killed_at_a_timeout() -> None:
    here = Setup()
    here.send(1)
    here.process.start_next()
    here.process.finish()
    here.pool.kill(here.worker, timed_out(1.0))
    assert here.process.killed == []
    assert here.failed() == []


def test_a_timed_out_job_has_an_outcome_once_its_worker_has_ended() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.start_next()
    here.pool.kill(here.worker, timed_out(1.0), with_stack=True)
    assert here.process.killed == [True]
    assert here.failed() == []
    here.process.die(signal="SIGKILL", stack="in work")
    assert here.failed() == [(1, Cause.TIMEOUT)]
    assert here.received.outcomes[-1].failure is not None and here.received.outcomes[-1].failure.stack == "in work"
    assert [lease.id for lease in here.received.reclaimed] == [2]


def test_the_job_of_a_worker_that_is_stuck_in_the_kernel_has_one_outcome_and_the_worker_is_known_until_it_exits() -> (
    None
):
    here = Setup()
    here.send(1, 2)
    here.process.start_next()
    slot, process = here.worker, here.process
    here.pool.kill(slot, timed_out(1.0))
    process.listener.ended(ExitReport(process.pid or 0, stuck="state D, in wait"))
    assert here.failed() == [(1, Cause.TIMEOUT)]
    assert [lease.id for lease in here.received.reclaimed] == [2]
    failure = here.received.outcomes[-1].failure
    assert failure is not None and failure.message.endswith("its process is stuck in the kernel: state D, in wait")
    assert [*here.pool.workers] == [2] and [*here.pool.stuck] == [1]
    here.pool.kill_all(SHUTDOWN)
    process.listener.ended(ExitReport(process.pid or 0, signal="SIGKILL"))
    assert [*here.pool.workers] == [2] and not here.pool.stuck
    assert len(here.received.outcomes) == 1
    assert [event.job_id for event in here.events if isinstance(event, WorkerExited)] == [1]
    assert [event.pid for event in here.events if isinstance(event, WorkerWarning)] == [process.pid, process.pid]


def test_a_killed_worker_is_replaced_when_it_ends_or_50_ms_after_the_kill() -> None:
    here = Setup()
    here.send(1)
    here.process.start_next()
    here.pool.kill(here.worker, timed_out(1.0))
    assert len(here.backend.forked) == 1
    here.timer.advance(0.050)
    assert len(here.backend.forked) == 2
    here.backend.forked[0].die(signal="SIGKILL")
    assert len(here.backend.forked) == 2


def test_a_worker_that_exits_at_a_job_is_replaced_before_it_is_reaped() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.start_next()
    dead = here.process
    dead.exit()
    assert len(here.backend.forked) == 2
    assert [lease.id for lease in here.received.reclaimed] == [2]
    assert here.failed() == []
    dead.die(signal="SIGSEGV")
    assert here.failed() == [(1, Cause.CRASH)]
    assert len(here.backend.forked) == 2


def test_a_worker_that_exits_without_a_job_is_replaced_once_its_status_is_known() -> None:
    here = Setup()
    here.process.exit()
    assert len(here.backend.forked) == 1
    here.process.die(exit_code=1)
    assert len(here.backend.forked) == 2


def test_a_worker_that_has_exited_and_is_not_reaped_gets_no_job() -> None:
    here = Setup(count=2)
    dead = here.worker
    dead.process.exit()  # type: ignore[attr-defined]
    assert here.pool.idle_count() == 1
    assert dead not in here.pool.others.slots_with_room()
    assert len(here.pool.others.slots_with_room()) == 1


def test_a_job_killed_by_a_shutdown_or_a_cancel_is_not_blamed() -> None:
    for reason in (SHUTDOWN, LEASE_LOST, CANCELLED):
        here = Setup()
        here.send(1)
        here.process.start_next()
        here.pool.kill(here.worker, reason)
        here.process.die(signal="SIGKILL")
        assert [(o.lease.id, o.kind) for o in here.received.outcomes] == [(1, Kind.RELEASED)]


@pytest.mark.parametrize("retiring", [False, True])
def test_a_job_that_ended_its_worker_is_blamed_even_if_all_workers_are_killed_before_that_one_is_reaped(
    retiring: bool,
) -> None:
    here = Setup()
    here.send(1)
    here.process.start_next()
    process = here.process
    if retiring:
        here.pool.stop()
    process.exit()
    here.pool.kill_all(SHUTDOWN)
    process.listener.ended(ExitReport(1, signal="SIGSEGV"))
    assert here.failed() == [(1, Cause.CRASH)]
    assert [(event.cause, event.job_id) for event in here.events if isinstance(event, WorkerExited)] == [("crash", 1)]


def test_a_reply_for_another_job_breaks_the_channel_and_the_running_job_is_blamed() -> None:
    here = Setup()
    here.send(1)
    here.process.start_next()
    here.process.jobs[0] = (1, make_lease(99))
    here.process.finish()
    here.process.drain()
    assert here.process.killed == [False]
    here.process.die(signal="SIGKILL")
    assert here.failed() == [(1, Cause.CRASH)]


def test_a_second_outcome_of_a_job_blames_nobody_who_was_sent_later_and_its_worker_is_replaced() -> None:
    here = Setup()
    worker, process = here.worker, here.process
    here.send(1)
    process.start_next()
    process.unread.append(Reply(1, "ok", 0.001, None, None))
    process.drain()
    here.send(2, 3)
    process.finish()  # the real end of job 1
    process.start_next()
    process.drain()
    assert not process.killed and process.retired and worker.state is State.RETIRING
    assert [lease.id for lease in here.received.reclaimed] == [3]
    assert len(here.backend.forked) == 2
    assert [event.message for event in here.events if isinstance(event, WorkerWarning)] == [REPEATED.format(1)]
    process.finish()
    process.die(exit_code=0)
    assert [(outcome.lease.id, outcome.kind) for outcome in here.received.outcomes] == [
        (1, Kind.SUCCEEDED),
        (2, Kind.SUCCEEDED),
    ]


def test_outcomes_repeated_in_one_batch_are_ignored_and_the_others_count() -> None:
    here = Setup()
    process = here.process
    here.send(1, 2, 3)
    process.start_next()
    process.unread += [Reply(id, "ok", 0.001, None, None) for id in (1, 1, 2, 1, 2)]
    process.drain()
    assert [outcome.lease.id for outcome in here.received.outcomes] == [1, 2]
    assert process.corrected == [2]
    assert not process.killed


def test_a_worker_that_repeats_outcomes_without_end_is_broken() -> None:
    here = Setup()
    process = here.process
    here.send(1)
    process.run_next()
    for _ in range(MAX_REPEATED):
        process.unread.append(Reply(1, "ok", 0.001, None, None))
        process.drain()
    assert not process.killed
    process.unread.append(Reply(1, "ok", 0.001, None, None))
    process.drain()
    assert process.killed == [False]
    assert len([event for event in here.events if isinstance(event, WorkerWarning)]) == 1


def test_a_reply_for_a_job_that_never_started_breaks_the_channel() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.start_next()
    here.pool.reclaim_unstarted()
    here.process.finish()
    here.process.unread.append(Reply(2, "ok", 0.001, None, None))
    here.process.drain()
    assert here.process.killed == [False]
    here.process.die(signal="SIGKILL")
    assert here.failed() == []


def test_workers_that_exit_before_they_are_ready_are_replaced_with_growing_delays() -> None:
    here = Setup()
    here.process.die(exit_code=1)
    forked = len(here.backend.forked)
    assert forked == 2
    for expected in (0.1, 0.2, 0.4):
        here.process.die(exit_code=1)
        here.timer.advance(expected * 0.9)
        assert len(here.backend.forked) == forked
        here.timer.advance(expected * 0.2)
        forked += 1
        assert len(here.backend.forked) == forked
    for _ in range(20):
        here.process.die(exit_code=1)
        here.timer.advance(REFORK_DELAYS[1])
    assert len(here.backend.forked) == forked + 20


def test_workers_that_break_their_channel_before_they_are_ready_are_replaced_with_growing_delays() -> None:
    here = Setup()
    here.process.die(exit_code=1)
    for expected in (0.1, 0.2, 0.4):
        forked = len(here.backend.forked)
        here.process.listener.channel_broken("rubbish")
        here.process.die(signal="SIGKILL")
        here.timer.advance(expected * 0.9)
        assert len(here.backend.forked) == forked
        here.timer.advance(expected * 0.2)
        assert len(here.backend.forked) == forked + 1


def test_a_worker_without_channels_is_reported_and_forked_after_a_delay() -> None:
    here = Setup()
    here.backend.error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    here.pool.resize(2)
    (ended,) = [event for event in here.events if isinstance(event, WorkerExited)]
    assert ended.pid == 0 and ended.how.startswith("could not be started: its channels can't be opened: Too many")
    here.backend.error = None
    here.pool.fill()
    assert len(here.backend.forked) == 1
    here.timer.advance(REFORK_DELAYS[0])
    assert len(here.backend.forked) == 2


def test_a_job_whose_outcome_was_forged_before_it_started_is_not_lost() -> None:
    here = Setup()
    here.send(1, 2, 3, 4)
    here.process.start_next()
    here.process.unread += [Reply(1, "ok", 0.001, None, None), Reply(2, "ok", 0.001, None, None)]
    here.process.drain()
    here.pool.reclaim_unstarted()
    here.send(5, 6)
    here.pool.reclaim_unstarted()
    assert [lease.id for lease in here.received.reclaimed] == [3, 4, 5, 6]
    assert not here.worker.sent


def test_many_workers_that_cannot_start_are_forked_again_as_often_as_one() -> None:
    here = Setup(count=8)
    for process in here.backend.forked[:8]:
        process.die(exit_code=1)
    for expected in (0.1, 0.2, 0.4, 0.8):
        forked = len(here.backend.forked)
        for slot in list(here.pool.workers.values()):
            slot.process.die()  # type: ignore[attr-defined]
        here.timer.advance(expected * 0.9)
        assert len(here.backend.forked) == forked
        here.timer.advance(expected * 0.2)
        assert len(here.backend.forked) == forked + 8


def test_workers_that_exit_as_soon_as_they_are_ready_are_replaced_with_growing_delays() -> None:
    here = Setup()
    for _ in range(200):
        here.timer.advance(0.05)
        if here.pool.workers:
            here.process.come_up()
            here.process.die(exit_code=1)
    assert len(here.backend.forked) < 10


def test_a_worker_that_has_done_a_job_or_run_for_a_while_is_replaced_at_once() -> None:
    here = Setup()
    for id in range(5):
        here.send(id)
        here.process.run_next()
        here.process.die(exit_code=1)
        here.process.come_up()
        here.timer.advance(2.0)
        here.process.die(signal="SIGKILL")
        here.process.come_up()
    assert len(here.backend.forked) == 11


def test_a_worker_that_is_not_ready_in_time_is_named_so() -> None:
    here = Setup()
    here.pool.resize(2)
    here.process.listener.not_ready("not ready after 31s")
    here.process.die(signal="SIGKILL")
    assert here.exits() == [("not_ready", "not ready after 31s")]


def test_no_worker_is_forked_after_a_stop_begins() -> None:
    here = Setup(count=3)
    here.pool.stop()
    for process in list(here.backend.forked):
        assert process.retired
        process.die(exit_code=0)
    here.timer.advance(60)
    assert len(here.backend.forked) == 3
    assert [event.cause for event in here.events if isinstance(event, WorkerExited)] == ["stopped"] * 3


def test_a_stop_retires_workers_that_are_starting_too() -> None:
    here = Setup(count=2)
    starting, idle = here.backend.forked
    here.pool.workers[starting.number].state = State.STARTING
    here.pool.stop()
    assert [(process.retired, process.killed) for process in (starting, idle)] == [(True, [])] * 2


def test_a_worker_that_is_not_ready_a_second_after_its_start_is_killed_at_the_end() -> None:
    here = Setup(count=2)
    here.pool.resize(4)
    hangs, late = here.backend.forked[2:]
    here.timer.advance(HOOK_SECONDS - 0.5)
    here.pool.stop()
    assert (hangs.killed, late.killed) == ([], [])
    late.come_up()
    here.timer.advance(0.5)
    assert [process.killed for process in here.backend.forked] == [[], [], [False], []]


def test_a_worker_that_has_been_starting_for_long_is_killed_as_soon_as_the_end_comes() -> None:
    here = Setup()
    here.pool.resize(3)
    here.pool.resize(2)  # which retires one of the two that are starting
    here.timer.advance(HOOK_SECONDS)
    here.pool.stop()
    here.timer.advance(0.0)
    assert [process.killed for process in here.backend.forked] == [[], [False], [False]]


def test_the_exit_of_a_worker_names_the_hook_that_it_was_in() -> None:
    here = Setup()
    here.process.listener.ended(ExitReport(1, exit_code=3, doing="hook h of plugin p.py"))
    assert here.exits() == [("crash", "exited with status 3 during hook h of plugin p.py")]


@pytest.mark.parametrize(("after", "cause"), [(HOOK_SECONDS, "lingering"), (0.9 * HOOK_SECONDS, "shutdown")])
def test_a_worker_that_is_killed_in_its_stop_hook_has_lingered_if_it_had_time(after: float, cause: str) -> None:
    here = Setup()
    here.pool.stop()
    here.process.doing = "hook h of plugin p.py"
    here.timer.advance(after)
    here.pool.kill_all(SHUTDOWN)
    here.process.die(signal="SIGKILL", doing="hook h of plugin p.py")
    assert here.exits() == [(cause, "killed by SIGKILL during hook h of plugin p.py")]


def test_a_worker_retired_before_it_was_forked_has_not_crashed() -> None:
    here = Setup(count=1)
    (unstarted,) = here.backend.forked
    here.pool.stop()
    unstarted.pid = None
    unstarted.listener.ended(ExitReport(0, start_error="no forkserver was ready"))
    assert [event.cause for event in here.events if isinstance(event, WorkerExited)] == ["stopped"]


def test_a_worker_is_recycled_after_max_jobs() -> None:
    here = Setup(max_jobs=2)
    assert here.worker.has_room()
    here.send(1, 2)
    here.process.run_next()
    assert not here.process.retired
    here.process.run_next()
    first = here.backend.forked[0]
    assert first.retired
    assert len(here.backend.forked) == 2
    first.die(exit_code=0)
    assert here.exits() == [("max_jobs", "workers.max_jobs is 2")]


def test_a_worker_that_may_not_raise_its_priority_again_exits_as_it_should_unless_its_job_exited() -> None:
    here = Setup()
    here.send(1)
    here.process.run_next()
    here.process.die(exit_code=STATUS_LOWERED)
    assert here.exits() == [("nice", "it may not raise its priority again after its job")]
    here.process.come_up()
    here.send(2)
    here.process.start_next()
    here.process.die(exit_code=STATUS_LOWERED)
    assert here.exits()[1:] == [("crash", f"exited with status {STATUS_LOWERED}")]
    assert here.failed() == [(2, Cause.CRASH)]


def test_the_share_of_max_jobs_is_named_beside_the_setting() -> None:
    here = Setup(count=2, max_jobs=4)
    slot = here.pool.workers[2]
    slot.send([make_lease(1), make_lease(2)])
    process = slot.process
    process.run_next()  # type: ignore[attr-defined]
    process.run_next()  # type: ignore[attr-defined]
    process.die(exit_code=0)  # type: ignore[attr-defined]
    assert here.exits() == [("max_jobs", "2 jobs are its share after a start: workers.max_jobs is 4")]


def test_a_log_record_names_only_a_job_of_its_worker_and_what_is_known_of_that() -> None:
    here = Setup()
    here.send(1, handler="mail")
    for job_id in (1, 99):
        here.worker.output(WorkerRecord(30, "WARNING", "app", "lost", "", job_id, "pay", 7))
    logged = [event for event in here.events if isinstance(event, WorkerLogged)]
    assert [(event.job_id, event.handler, event.attempt) for event in logged] == [(1, "mail", 1), (None, None, None)]


@pytest.mark.parametrize("count", [1, 3])
def test_workers_that_take_long_to_exit_do_not_pile_up(count: int) -> None:
    here = Setup(count=count, max_jobs=1)
    for job in range(1, 5 * count + 1):
        for slot in here.pool.others.slots_with_room()[:1]:
            slot.send([make_lease(job)])
            slot.process.run_next()  # type: ignore[attr-defined]
        for process in here.backend.forked:
            if process.pid is not None and process.listener.ready_at is None:
                process.come_up()
    assert len(here.backend.forked) == 2 * count == len(here.pool.workers)
    assert not here.pool.others.slots_with_room()
    here.backend.forked[0].die(exit_code=0)
    assert len(here.backend.forked) == 2 * count + 1
    here.process.come_up()
    assert len(here.pool.others.slots_with_room()) == 1


def test_long_jobs_of_before_two_reloads_keep_no_new_worker_from_starting() -> None:
    here = Setup(count=2)
    for _ in range(3):
        for slot in here.pool.others.slots_with_room():
            slot.send([make_lease(slot.number)])
            slot.process.start_next()  # type: ignore[attr-defined]
        here.backend = FakeBackend()
        here.pool.renew(here.backend)
        for process in here.backend.forked:
            process.come_up()
        assert len(here.pool.others.slots_with_room()) == 2


def test_a_worker_that_crashes_when_it_has_done_its_last_job_has_crashed() -> None:
    here = Setup(max_jobs=1)
    here.send(1)
    here.process.run_next()
    here.backend.forked[0].die(exit_code=1)
    assert here.exits() == [("crash", "exited with status 1")]


@pytest.mark.parametrize("renewed", [False, True], ids=["started", "reloaded"])
def test_workers_that_start_together_reach_max_jobs_one_after_the_other_and_so_do_their_successors(
    renewed: bool,
) -> None:
    here = Setup(count=4, max_jobs=8)
    if renewed:
        here.backend = FakeBackend()
        here.pool.renew(here.backend)
        for process in here.backend.forked:
            process.come_up()
    jobs, starts = 0, []
    while jobs < 4 * 24:
        for slot in here.pool.others.slots_with_room():
            jobs += 1
            slot.send([make_lease(jobs)])
            before = len(here.backend.forked)
            slot.process.run_next()  # type: ignore[attr-defined]
            starts += [jobs] * (len(here.backend.forked) - before)
            if slot.state is State.RETIRING:
                slot.process.die(exit_code=0)  # type: ignore[attr-defined]
            for process in here.backend.forked[before:]:
                process.come_up()
    assert max(slot.done for slot in here.pool.workers.values()) <= 8
    rounds = [-(-jobs // 4) for jobs in starts]  # in each of which every worker runs a job
    assert rounds == list(range(2, 25, 2)), "two rounds from one to the next, and never two in one"


def test_a_worker_is_recycled_once_it_has_grown_past_max_memory() -> None:
    here = Setup(max_memory=50_000_000)
    here.send(1)
    here.process.rss = 60_000_000
    here.process.run_next()
    assert here.backend.forked[0].retired
    here.backend.forked[0].die(exit_code=0)
    assert here.exits() == [("max_memory", "it has 60MB, workers.max_memory is 50MB")]
    large_at_start = here.process
    large_at_start.rss = 70_000_000
    large_at_start.come_up()
    here.pool.workers[large_at_start.number].send([make_lease(2)])
    large_at_start.run_next()
    assert not large_at_start.retired


def test_a_worker_that_is_never_seen_without_jobs_is_recycled_too_once_it_has_grown() -> None:
    here = Setup(max_memory=50_000_000)
    large = here.process
    large.rss = 60_000_000
    here.send(*range(1, 6))
    here.timer.advance(MEMORY_CHECK_INTERVAL / 2)
    large.run_next()
    assert not large.retired, "its memory is not checked at every reply"
    here.timer.advance(MEMORY_CHECK_INTERVAL / 2)
    large.start_next()
    large.finish()
    large.start_next()
    large.drain()
    assert large.retired and len(here.backend.forked) == 2
    assert [lease.id for lease in here.received.reclaimed] == [4, 5]
    large.finish()
    large.drain()
    assert [outcome.lease.id for outcome in here.received.outcomes] == [1, 2, 3]


def frame_of(here: Setup, handler: str, waiting: int = 1000) -> int:
    jobs = iter(make_lease(i, handler) for i in range(waiting))
    return len(here.worker.frame_for(jobs, FRAME_JOBS))


def test_a_frame_is_ten_milliseconds_of_work() -> None:
    here = Setup()
    for handler, took in (("tiny", 0.00001), ("short", 0.001), ("long", 5.0)):
        here.pool.others.times.learn(handler, [took])
    assert frame_of(here, "unknown") == 1
    assert frame_of(here, "long") == 1
    assert frame_of(here, "short") == 10
    assert frame_of(here, "tiny") == FRAME_JOBS


def test_one_slow_run_counts_at_once_and_for_long() -> None:
    here = Setup()
    for _ in range(100):
        here.pool.others.times.learn("mixed", [0.001])
    here.pool.others.times.learn("mixed", [0.5])
    assert frame_of(here, "mixed") == 1
    for _ in range(10):
        here.pool.others.times.learn("mixed", [0.001])
    assert frame_of(here, "mixed") == 1


def test_a_worker_takes_another_frame_only_while_it_has_little_left() -> None:
    here = Setup()
    here.pool.others.times.learn("work", [0.001])
    here.send(*range(1, 11))
    assert here.pool.others.slots_with_room() == []
    for _ in range(6):
        here.process.run_next()
    assert here.pool.others.slots_with_room() == [here.worker]


def test_idle_workers_are_retired_first_when_fewer_are_wanted() -> None:
    here = Setup(count=2)
    busy, _ = here.pool.workers.values()
    busy.send([make_lease(1)])
    here.pool.resize(1)
    assert (here.backend.forked[0].retired, here.backend.forked[1].retired) == (False, True)


def test_workers_asked_for_before_the_pool_is_open_are_forked_when_it_opens() -> None:
    here = Setup(count=1)
    pool = Pool(1, here.bus, here.timer)
    pool.resize(3)
    pool.open(here.backend, here.received)
    assert len(pool.workers) == 3


def test_new_settings_replace_every_worker_and_drop_no_job() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.start_next()
    fresh = FakeBackend()
    here.pool.renew(fresh)
    assert here.backend.forked[0].retired and len(fresh.forked) == 1
    assert [lease.id for lease in here.received.reclaimed] == [2]
    here.backend.forked[0].finish()
    here.backend.forked[0].die(exit_code=0)
    assert [o.lease.id for o in here.received.outcomes] == [1]
    assert len(fresh.forked) == 1


def test_a_worker_on_trial_that_is_useless_delays_no_other() -> None:
    here = Setup()
    trial = FakeBackend()
    for _ in range(5):
        here.pool.others.fork(trial, Limits(None, None))
        trial.forked[-1].die(exit_code=1)
    here.send(1)
    here.process.start_next()
    here.process.die(exit_code=1)
    assert len(here.backend.forked) == 2


def test_new_settings_wait_for_no_delay_of_the_old_ones() -> None:
    here = Setup(count=2)
    for _ in range(10):
        for process in here.backend.forked[-2:]:
            process.die(exit_code=1)
        here.timer.advance(REFORK_DELAYS[1])
    for process in here.backend.forked[-2:]:
        process.die(exit_code=1)
    fresh = FakeBackend()
    here.pool.renew(fresh)
    assert len(fresh.forked) == 2
    here.timer.advance(2 * REFORK_DELAYS[1])
    assert len(fresh.forked) == 2
    fresh.forked[0].die(exit_code=1)
    here.timer.advance(2 * REFORK_DELAYS[0])
    assert len(fresh.forked) == 3


def test_workers_that_the_new_forkserver_is_yet_to_fork_are_not_replaced() -> None:
    here = Setup()
    here.pool.resize(2)
    forked, ordered = here.backend.forked
    ordered.pid = None
    here.pool.renew(here.backend)
    assert (forked.retired, ordered.retired) == (True, False)
    assert len(here.backend.forked) == 3


def test_workers_that_the_old_forkserver_is_yet_to_fork_are_replaced_by_new_settings() -> None:
    here = Setup(count=2)
    forked, ordered = here.backend.forked
    ordered.pid = None
    fresh = FakeBackend()
    here.pool.renew(fresh)
    assert (forked.retired, ordered.retired, len(fresh.forked)) == (True, True, 2)


def test_a_worker_that_was_retired_while_it_started_takes_no_job() -> None:
    here = Setup()
    here.pool.resize(2)
    here.pool.stop()
    here.process.come_up()
    assert [slot.state for slot in here.pool.workers.values()] == [State.RETIRING] * 2


def test_the_delay_is_the_shortest_again_after_a_worker_that_was_of_use() -> None:
    here = Setup()
    for delay in (0.0, 0.1, 0.2):
        here.process.die(exit_code=1)
        here.timer.advance(delay)
    here.process.come_up()
    here.timer.advance(2.0)
    here.process.die(exit_code=1)
    assert len(here.backend.forked) == 5
    here.process.die(exit_code=1)
    here.timer.advance(REFORK_DELAYS[0])
    assert len(here.backend.forked) == 6


def test_a_worker_that_cannot_do_its_work_is_replaced_and_not_another_one_and_not_too_often() -> None:
    here = Setup(count=2)
    first, second = here.backend.forked
    assert here.pool.replace(second.pid or 0)
    assert (first.retired, second.retired, len(here.backend.forked)) == (False, True, 3)
    assert not here.pool.replace(first.pid or 0) and not first.retired
    assert here.pool.replace(12345), "it is gone already"
    here.timer.advance(REPLACE_INTERVAL)
    assert here.pool.replace(first.pid or 0) and first.retired


@pytest.mark.parametrize(("after", "delay"), [(None, None), (7.5, 7.5), (-1, 0.0)])
def test_the_delay_that_a_handler_names_is_that_of_its_outcome(after: float | None, delay: float | None) -> None:
    here = Setup()
    here.send(1)
    here.process.run_next(kind="failed", error={"type": "Retry", "after": after})
    assert [outcome.retry_after for outcome in here.received.outcomes] == [delay]
