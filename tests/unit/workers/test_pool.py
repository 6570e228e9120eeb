"""The pool's books: exactly the running job is blamed, and nothing that did not start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.events import Bus, JobStarted, WorkerExited
from supervisor.jobs import Cause, JobState, Kind, Lease, Outcome
from supervisor.workers.interface import ExitReport, Reply
from supervisor.workers.kill_reasons import LEASE_LOST, SHUTDOWN, timed_out
from supervisor.workers.pool import FRAME_JOBS, MEMORY_CHECK_INTERVAL, REFORK_DELAYS, Pool
from supervisor.workers.slot import State, WorkerSlot
from tests.unit.fakes import FakeBackend, FakeTimer, FakeWorker, make_lease


class Recorder:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.returned: list[Lease] = []

    def jobs_ended(self, outcomes: list[Outcome]) -> None:
        self.outcomes += outcomes

    def jobs_reclaimed(self, leases: list[Lease]) -> None:
        self.returned += leases

    def workers_changed(self) -> None:
        pass

    def plugins_reported(self, reports: Sequence[Any]) -> None:
        pass


class Setup:
    def __init__(self, count: int = 1, **options: Any) -> None:
        self.timer, self.heard, self.bus, self.events = FakeTimer(), Recorder(), Bus(), []
        self.bus.subscribe(self.events.append)
        self.pool = Pool(count, self.bus, self.timer, **options)
        self.backend = FakeBackend(self.pool)
        self.pool.open(self.backend, self.heard)
        for process in self.backend.forked:
            process.come_up()

    @property
    def worker(self) -> WorkerSlot:
        return next(iter(self.pool.workers.values()))

    @property
    def process(self) -> FakeWorker:
        return self.backend.forked[-1]

    def send(self, *ids: int, **lease: Any) -> None:
        self.pool.send(self.worker, [make_lease(id, **lease) for id in ids])

    def failed(self) -> list[tuple[int, Cause]]:
        return [(o.lease.id, o.failure.cause) for o in self.heard.outcomes if o.failure is not None]


def test_a_reply_ends_the_first_job_sent() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.run_next()
    assert [(o.lease.id, o.kind, o.state) for o in here.heard.outcomes] == [(1, Kind.SUCCEEDED, JobState.SUCCEEDED)]


def test_a_job_runs_once_its_worker_has_taken_it() -> None:
    here = Setup()
    here.send(1, 2)
    here.pool.report_started(here.worker)
    assert not [*here.pool.running()]
    here.process.start_next()
    here.pool.report_started(here.worker)
    assert [lease.id for _, lease in here.pool.running()] == [1]
    here.process.finish()
    here.process.drain()
    assert not [*here.pool.running()]
    here.process.start_next()
    assert [lease.id for _, lease in here.pool.running()] == [2]
    assert [event.lease.id for event in here.events if isinstance(event, JobStarted)] == [1]


def test_the_running_job_is_blamed_and_the_rest_go_free() -> None:
    here = Setup()
    here.send(1, 2, 3)
    here.process.run_next()
    here.process.start_next()
    here.process.die(signal="SIGSEGV")
    assert here.failed() == [(2, Cause.CRASH)]
    assert [lease.id for lease in here.heard.returned] == [3]


def test_a_worker_that_dies_between_jobs_blames_nobody() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.run_next()
    here.process.die(signal="SIGKILL")
    assert here.failed() == []
    assert [lease.id for lease in here.heard.returned] == [2]


def test_a_reply_still_in_the_channel_at_death_counts() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.start_next()
    here.process.finish()
    here.process.die(exit_code=0)
    assert [o.lease.id for o in here.heard.outcomes if o.kind is Kind.SUCCEEDED] == [1]
    assert here.failed() == []


@given(st.lists(st.sampled_from(["send", "start", "finish", "read", "take_back"]), max_size=60), st.integers(1, 5))
def test_whatever_happens_no_job_is_lost_and_only_a_started_one_is_blamed(steps: list[str], frame: int) -> None:
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
        elif step == "take_back":
            here.pool.reclaim_unstarted()
    process.die(signal="SIGKILL")
    succeeded = [o.lease.id for o in here.heard.outcomes if o.kind is Kind.SUCCEEDED]
    blamed = [id for id, _ in here.failed()]
    returned = [lease.id for lease in here.heard.returned]
    assert sorted(succeeded + blamed + returned) == list(range(1, sent + 1))
    assert set(succeeded + blamed) == started
    assert len(blamed) == running


def test_unstarted_jobs_are_taken_back_from_behind_a_long_one() -> None:
    here = Setup()
    here.send(1, 2, 3)
    here.process.start_next()
    here.timer.advance(0.5)
    here.pool.reclaim_blocked(here.worker)
    assert [lease.id for lease in here.heard.returned] == [2, 3]
    assert here.pool.times.of("work") == 0.5
    here.process.finish()
    here.process.drain()
    assert [o.lease.id for o in here.heard.outcomes] == [1]


def test_a_timeout_reads_the_replies_before_it_kills() -> None:
    here = Setup()
    here.send(1)
    here.process.start_next()
    here.process.finish()
    here.pool.kill(here.worker, timed_out(1.0))
    assert here.process.killed == []
    assert here.failed() == []


def test_a_timed_out_job_is_settled_when_its_worker_is_dead() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.start_next()
    here.pool.kill(here.worker, timed_out(1.0), with_stack=True)
    assert here.process.killed == [True]
    assert here.failed() == []
    here.process.die(signal="SIGKILL", stack="in work")
    assert here.failed() == [(1, Cause.TIMEOUT)]
    assert here.heard.outcomes[-1].failure is not None and here.heard.outcomes[-1].failure.stack == "in work"
    assert [lease.id for lease in here.heard.returned] == [2]


def test_a_place_is_filled_at_death_or_50_ms_after_the_kill() -> None:
    here = Setup()
    here.send(1)
    here.process.start_next()
    here.pool.kill(here.worker, timed_out(1.0))
    assert len(here.backend.forked) == 1
    here.timer.advance(0.050)
    assert len(here.backend.forked) == 2
    here.backend.forked[0].die(signal="SIGKILL")
    assert len(here.backend.forked) == 2


def test_the_place_of_one_that_died_at_a_job_does_not_wait_until_it_is_reaped() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.start_next()
    dead = here.process
    dead.exit()
    assert len(here.backend.forked) == 2
    assert [lease.id for lease in here.heard.returned] == [2]
    assert here.failed() == []
    dead.die(signal="SIGSEGV")
    assert here.failed() == [(1, Cause.CRASH)]
    assert len(here.backend.forked) == 2


def test_the_place_of_one_that_died_at_nothing_waits_until_it_is_known_how() -> None:
    here = Setup()
    here.process.exit()
    assert len(here.backend.forked) == 1
    here.process.die(exit_code=1)
    assert len(here.backend.forked) == 2


def test_one_that_is_dead_and_not_yet_reaped_gets_no_job() -> None:
    here = Setup(count=2)
    dead = here.worker
    dead.process.exit()  # type: ignore[attr-defined]
    assert here.pool.idle_count() == 1
    assert dead not in here.pool.slots_with_room()
    assert len(here.pool.slots_with_room()) == 1


def test_a_job_killed_by_a_shutdown_or_a_cancel_is_not_blamed() -> None:
    for reason in (SHUTDOWN, LEASE_LOST):
        here = Setup()
        here.send(1)
        here.process.start_next()
        here.pool.kill(here.worker, reason)
        here.process.die(signal="SIGKILL")
        assert [(o.lease.id, o.kind) for o in here.heard.outcomes] == [(1, Kind.RELEASED)]


@pytest.mark.parametrize("retiring", [False, True])
def test_a_job_that_its_worker_died_of_is_blamed_even_if_all_are_killed_before_that_one_is_reaped(
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
    here.pool.ended(process, ExitReport(1, signal="SIGSEGV"))
    assert here.failed() == [(1, Cause.CRASH)]
    assert [(event.cause, event.job_id) for event in here.events if isinstance(event, WorkerExited)] == [("crash", 1)]


def test_a_reply_for_another_job_is_rubbish_and_blames_the_running_one() -> None:
    here = Setup()
    here.send(1)
    here.process.start_next()
    here.process.jobs[0] = (1, make_lease(99))
    here.process.finish()
    here.process.drain()
    assert here.process.killed == [False]
    here.process.die(signal="SIGKILL")
    assert here.failed() == [(1, Cause.CRASH)]


def test_a_reply_for_a_job_that_it_never_started_is_rubbish() -> None:
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


def test_workers_that_die_before_they_are_ready_are_replaced_with_growing_delays() -> None:
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
        here.pool.channel_broken(here.process, "rubbish")
        here.process.die(signal="SIGKILL")
        here.timer.advance(expected * 0.9)
        assert len(here.backend.forked) == forked
        here.timer.advance(expected * 0.2)
        assert len(here.backend.forked) == forked + 1


def test_many_places_that_cannot_be_filled_are_tried_again_as_often_as_one() -> None:
    here = Setup(count=8)
    for process in here.backend.forked[:8]:
        process.die(exit_code=1)
    for expected in (0.1, 0.2, 0.4, 0.8):
        forked = len(here.backend.forked)
        for process in here.backend.forked[-8:]:
            process.die()
        here.timer.advance(expected * 0.9)
        assert len(here.backend.forked) == forked
        here.timer.advance(expected * 0.2)
        assert len(here.backend.forked) == forked + 8


def test_workers_that_die_as_soon_as_they_are_ready_are_replaced_with_growing_delays() -> None:
    here = Setup()
    for _ in range(200):
        here.timer.advance(0.05)
        if here.pool.workers:
            here.process.come_up()
            here.process.die(exit_code=1)
    assert len(here.backend.forked) < 10


def test_a_worker_that_has_done_a_job_or_lived_a_while_is_replaced_at_once() -> None:
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


def test_no_new_child_after_a_stop_begins() -> None:
    here = Setup(count=3)
    here.pool.stop()
    for process in list(here.backend.forked):
        assert process.retired
        process.die(exit_code=0)
    here.timer.advance(60)
    assert len(here.backend.forked) == 3
    assert [event.cause for event in here.events if isinstance(event, WorkerExited)] == ["stopped"] * 3


def test_a_stop_ends_in_good_order_those_that_are_starting_too() -> None:
    here = Setup(count=2)
    starting, idle = here.backend.forked
    here.pool.workers[starting.number].state = State.STARTING
    here.pool.stop()
    assert [(process.retired, process.killed) for process in (starting, idle)] == [(True, [])] * 2


def test_one_retired_before_it_was_born_has_not_crashed() -> None:
    here = Setup(count=1)
    (start_error,) = here.backend.forked
    here.pool.stop()
    start_error.pid = None
    here.pool.ended(start_error, ExitReport(0, start_error="no nursery was ready"))
    assert [event.cause for event in here.events if isinstance(event, WorkerExited)] == ["stopped"]


def test_a_worker_is_recycled_after_max_jobs() -> None:
    here = Setup(max_jobs=2)
    assert here.pool._has_room(here.worker)
    here.send(1, 2)
    here.process.run_next()
    assert not here.process.retired
    here.process.run_next()
    assert here.backend.forked[0].retired
    assert len(here.backend.forked) == 2


def test_a_worker_is_recycled_once_it_has_grown_past_max_memory() -> None:
    here = Setup(max_memory=50_000_000)
    here.send(1)
    here.process.rss = 60_000_000
    here.process.run_next()
    assert here.backend.forked[0].retired
    born_big = here.process
    born_big.rss = 70_000_000
    born_big.come_up()
    here.pool.send(here.pool.workers[born_big.number], [make_lease(2)])
    born_big.run_next()
    assert not born_big.retired


def test_a_worker_that_is_never_seen_empty_is_recycled_as_well_once_it_has_grown() -> None:
    here = Setup(max_memory=50_000_000)
    big = here.process
    big.rss = 60_000_000
    here.send(*range(1, 6))
    here.timer.advance(MEMORY_CHECK_INTERVAL / 2)
    big.run_next()
    assert not big.retired, "it is not weighed at every reply"
    here.timer.advance(MEMORY_CHECK_INTERVAL / 2)
    big.start_next()
    big.finish()
    big.start_next()
    big.drain()
    assert big.retired and len(here.backend.forked) == 2
    assert [lease.id for lease in here.heard.returned] == [4, 5]
    big.finish()
    big.drain()
    assert [outcome.lease.id for outcome in here.heard.outcomes] == [1, 2, 3]


def frame_of(here: Setup, handler: str, waiting: int = 1000) -> int:
    jobs = iter(make_lease(i, handler) for i in range(waiting))
    return len(here.pool.frame_for(here.worker, jobs, FRAME_JOBS))


def test_a_frame_is_ten_milliseconds_of_work() -> None:
    here = Setup()
    for handler, took in (("tiny", 0.00001), ("short", 0.001), ("long", 5.0)):
        here.pool.times.learn(handler, [took])
    assert frame_of(here, "unknown") == 1
    assert frame_of(here, "long") == 1
    assert frame_of(here, "short") == 10
    assert frame_of(here, "tiny") == FRAME_JOBS


def test_one_slow_run_is_learnt_at_once_and_forgotten_slowly() -> None:
    here = Setup()
    for _ in range(100):
        here.pool.times.learn("mixed", [0.001])
    here.pool.times.learn("mixed", [0.5])
    assert frame_of(here, "mixed") == 1
    for _ in range(10):
        here.pool.times.learn("mixed", [0.001])
    assert frame_of(here, "mixed") == 1


def test_a_worker_takes_another_frame_only_while_it_has_little_left() -> None:
    here = Setup()
    here.pool.times.learn("work", [0.001])
    here.send(*range(1, 11))
    assert here.pool.slots_with_room() == []
    for _ in range(6):
        here.process.run_next()
    assert here.pool.slots_with_room() == [here.worker]


def test_fewer_workers_are_wanted_idle_ones_go_first() -> None:
    here = Setup(count=2)
    busy, _ = here.pool.workers.values()
    here.pool.send(busy, [make_lease(1)])
    here.pool.resize(1)
    assert (here.backend.forked[0].retired, here.backend.forked[1].retired) == (False, True)


def test_more_workers_asked_for_before_there_is_a_nursery_come_with_it() -> None:
    here = Setup(count=1)
    pool = Pool(1, here.bus, here.timer)
    pool.resize(3)
    pool.open(here.backend, here.heard)
    assert len(pool.workers) == 3


def test_new_settings_replace_every_worker_and_drop_no_job() -> None:
    here = Setup()
    here.send(1, 2)
    here.process.start_next()
    fresh = FakeBackend(here.pool)
    here.pool.renew(fresh)
    assert here.backend.forked[0].retired and len(fresh.forked) == 1
    assert [lease.id for lease in here.heard.returned] == [2]
    here.backend.forked[0].finish()
    here.backend.forked[0].die(exit_code=0)
    assert [o.lease.id for o in here.heard.outcomes] == [1]
    assert len(fresh.forked) == 1


def test_new_settings_wait_for_no_delay_that_the_old_ones_earned() -> None:
    here = Setup(count=2)
    for _ in range(10):
        for process in here.backend.forked[-2:]:
            process.die(exit_code=1)
        here.timer.advance(REFORK_DELAYS[1])
    for process in here.backend.forked[-2:]:
        process.die(exit_code=1)
    fresh = FakeBackend(here.pool)
    here.pool.renew(fresh)
    assert len(fresh.forked) == 2
    here.timer.advance(2 * REFORK_DELAYS[1])
    assert len(fresh.forked) == 2
    fresh.forked[0].die(exit_code=1)
    here.timer.advance(2 * REFORK_DELAYS[0])
    assert len(fresh.forked) == 3


def test_workers_that_the_new_nursery_is_yet_to_bear_are_new_already() -> None:
    here = Setup()
    here.pool.resize(2)
    born, start_error = here.backend.forked
    start_error.pid = None
    here.pool.renew(here.backend)
    assert (born.retired, start_error.retired) == (True, False)
    assert len(here.backend.forked) == 3
