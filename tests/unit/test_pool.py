"""The pool's books: exactly the running job is blamed, and nothing that did not start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.events import Bus, JobStarted, WorkerDied
from supervisor.jobs import Cause, JobState, Kind, Lease, Outcome
from supervisor.workers.interface import Death, Reply
from supervisor.workers.kill_reasons import LEASE_LOST, SHUTDOWN, timed_out
from supervisor.workers.pool import FRAME_JOBS, REFORK_DELAYS, WEIGH_EVERY, Pool
from supervisor.workers.slot import State, Worker
from tests.unit.fakes import FakeChild, FakeChildren, FakeTimer, make_lease


class Heard:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.returned: list[Lease] = []

    def ended(self, outcomes: list[Outcome]) -> None:
        self.outcomes += outcomes

    def unstarted(self, leases: list[Lease]) -> None:
        self.returned += leases

    def changed(self) -> None:
        pass

    def reported(self, reports: Sequence[Any]) -> None:
        pass


class Setup:
    def __init__(self, count: int = 1, **options: Any) -> None:
        self.timer, self.heard, self.bus, self.events = FakeTimer(), Heard(), Bus(), []
        self.bus.subscribe(self.events.append)
        self.pool = Pool(count, self.bus, self.timer, **options)
        self.children = FakeChildren(self.pool)
        self.pool.open(self.children, self.heard)
        for child in self.children.forked:
            child.come_up()

    @property
    def worker(self) -> Worker:
        return next(iter(self.pool.workers.values()))

    @property
    def child(self) -> FakeChild:
        return self.children.forked[-1]

    def send(self, *ids: int, **lease: Any) -> None:
        self.pool.send(self.worker, [make_lease(id, **lease) for id in ids])

    def failed(self) -> list[tuple[int, Cause]]:
        return [(o.lease.id, o.failure.cause) for o in self.heard.outcomes if o.failure is not None]


def test_a_reply_ends_the_first_job_sent() -> None:
    here = Setup()
    here.send(1, 2)
    here.child.run_next()
    assert [(o.lease.id, o.kind, o.state) for o in here.heard.outcomes] == [(1, Kind.SUCCEEDED, JobState.SUCCEEDED)]


def test_a_job_runs_once_its_worker_has_taken_it() -> None:
    here = Setup()
    here.send(1, 2)
    here.pool.note_started(here.worker)
    assert not [*here.pool.running()]
    here.child.start_next()
    here.pool.note_started(here.worker)
    assert [lease.id for _, lease in here.pool.running()] == [1]
    here.child.finish()
    here.child.drain()
    assert not [*here.pool.running()]
    here.child.start_next()
    assert [lease.id for _, lease in here.pool.running()] == [2]
    assert [event.lease.id for event in here.events if isinstance(event, JobStarted)] == [1]


def test_the_running_job_is_blamed_and_the_rest_go_free() -> None:
    here = Setup()
    here.send(1, 2, 3)
    here.child.run_next()
    here.child.start_next()
    here.child.die(signal="SIGSEGV")
    assert here.failed() == [(2, Cause.CRASH)]
    assert [lease.id for lease in here.heard.returned] == [3]


def test_a_worker_that_dies_between_jobs_blames_nobody() -> None:
    here = Setup()
    here.send(1, 2)
    here.child.run_next()
    here.child.die(signal="SIGKILL")
    assert here.failed() == []
    assert [lease.id for lease in here.heard.returned] == [2]


def test_a_reply_still_in_the_channel_at_death_counts() -> None:
    here = Setup()
    here.send(1, 2)
    here.child.start_next()
    here.child.finish()
    here.child.die(exit_code=0)
    assert [o.lease.id for o in here.heard.outcomes if o.kind is Kind.SUCCEEDED] == [1]
    assert here.failed() == []


@given(st.lists(st.sampled_from(["send", "start", "finish", "read", "take_back"]), max_size=60), st.integers(1, 5))
def test_whatever_happens_no_job_is_lost_and_only_a_started_one_is_blamed(steps: list[str], frame: int) -> None:
    here = Setup()
    child, worker, sent, started, next_id = here.child, here.worker, 0, set(), 1
    running = False
    for step in steps:
        if step == "send" and len(worker.sent) < 30:
            here.send(*range(next_id, next_id + frame))
            next_id += frame
            sent += frame
        elif step == "start" and child.permits and not running:
            started.add(child.start_next().id)
            running = True
        elif step == "finish" and running:
            child.finish()
            running = False
        elif step == "read":
            child.drain()
        elif step == "take_back":
            here.pool.release_unstarted()
    child.die(signal="SIGKILL")
    succeeded = [o.lease.id for o in here.heard.outcomes if o.kind is Kind.SUCCEEDED]
    blamed = [id for id, _ in here.failed()]
    returned = [lease.id for lease in here.heard.returned]
    assert sorted(succeeded + blamed + returned) == list(range(1, sent + 1))
    assert set(succeeded + blamed) == started
    assert len(blamed) == running


def test_unstarted_jobs_are_taken_back_from_behind_a_long_one() -> None:
    here = Setup()
    here.send(1, 2, 3)
    here.child.start_next()
    here.timer.advance(0.5)
    here.pool.release_captives(here.worker)
    assert [lease.id for lease in here.heard.returned] == [2, 3]
    assert here.pool.times.of("work") == 0.5
    here.child.finish()
    here.child.drain()
    assert [o.lease.id for o in here.heard.outcomes] == [1]


def test_a_timeout_reads_the_replies_before_it_kills() -> None:
    here = Setup()
    here.send(1)
    here.child.start_next()
    here.child.finish()
    here.pool.condemn(here.worker, timed_out(1.0))
    assert here.child.killed == []
    assert here.failed() == []


def test_a_timed_out_job_is_settled_when_its_worker_is_dead() -> None:
    here = Setup()
    here.send(1, 2)
    here.child.start_next()
    here.pool.condemn(here.worker, timed_out(1.0), with_stack=True)
    assert here.child.killed == [True]
    assert here.failed() == []
    here.child.die(signal="SIGKILL", stack="in work")
    assert here.failed() == [(1, Cause.TIMEOUT)]
    assert here.heard.outcomes[-1].failure is not None and here.heard.outcomes[-1].failure.stack == "in work"
    assert [lease.id for lease in here.heard.returned] == [2]


def test_a_place_is_filled_at_death_or_50_ms_after_the_kill() -> None:
    here = Setup()
    here.send(1)
    here.child.start_next()
    here.pool.condemn(here.worker, timed_out(1.0))
    assert len(here.children.forked) == 1
    here.timer.advance(0.050)
    assert len(here.children.forked) == 2
    here.children.forked[0].die(signal="SIGKILL")
    assert len(here.children.forked) == 2


def test_the_place_of_one_that_died_at_a_job_does_not_wait_until_it_is_reaped() -> None:
    here = Setup()
    here.send(1, 2)
    here.child.start_next()
    dead = here.child
    dead.exit()
    assert len(here.children.forked) == 2
    assert [lease.id for lease in here.heard.returned] == [2]
    assert here.failed() == []
    dead.die(signal="SIGSEGV")
    assert here.failed() == [(1, Cause.CRASH)]
    assert len(here.children.forked) == 2


def test_the_place_of_one_that_died_at_nothing_waits_until_it_is_known_how() -> None:
    here = Setup()
    here.child.exit()
    assert len(here.children.forked) == 1
    here.child.die(exit_code=1)
    assert len(here.children.forked) == 2


def test_one_that_is_dead_and_not_yet_reaped_gets_no_job() -> None:
    here = Setup(count=2)
    dead = here.worker
    dead.child.exit()  # type: ignore[attr-defined]
    assert here.pool.idle_count() == 1
    assert dead not in here.pool.open_workers()
    assert len(here.pool.open_workers()) == 1


def test_a_job_killed_by_a_shutdown_or_a_cancel_is_not_blamed() -> None:
    for doom in (SHUTDOWN, LEASE_LOST):
        here = Setup()
        here.send(1)
        here.child.start_next()
        here.pool.condemn(here.worker, doom)
        here.child.die(signal="SIGKILL")
        assert [(o.lease.id, o.kind) for o in here.heard.outcomes] == [(1, Kind.RELEASED)]


@pytest.mark.parametrize("retiring", [False, True])
def test_a_job_that_its_worker_died_of_is_blamed_even_if_all_are_killed_before_that_one_is_reaped(
    retiring: bool,
) -> None:
    here = Setup()
    here.send(1)
    here.child.start_next()
    child = here.child
    if retiring:
        here.pool.stop()
    child.exit()
    here.pool.kill_all(SHUTDOWN)
    here.pool.died(child, Death(1, signal="SIGSEGV"))
    assert here.failed() == [(1, Cause.CRASH)]
    assert [(event.cause, event.job_id) for event in here.events if isinstance(event, WorkerDied)] == [("crash", 1)]


def test_a_reply_for_another_job_is_rubbish_and_blames_the_running_one() -> None:
    here = Setup()
    here.send(1)
    here.child.start_next()
    here.child.jobs[0] = (1, make_lease(99))
    here.child.finish()
    here.child.drain()
    assert here.child.killed == [False]
    here.child.die(signal="SIGKILL")
    assert here.failed() == [(1, Cause.CRASH)]


def test_a_reply_for_a_job_that_it_never_started_is_rubbish() -> None:
    here = Setup()
    here.send(1, 2)
    here.child.start_next()
    here.pool.release_unstarted()
    here.child.finish()
    here.child.unread.append(Reply(2, "ok", 0.001, None, None))
    here.child.drain()
    assert here.child.killed == [False]
    here.child.die(signal="SIGKILL")
    assert here.failed() == []


def test_workers_that_die_before_they_are_ready_are_replaced_with_growing_delays() -> None:
    here = Setup()
    here.child.die(exit_code=1)
    forked = len(here.children.forked)
    assert forked == 2
    for expected in (0.1, 0.2, 0.4):
        here.child.die(exit_code=1)
        here.timer.advance(expected * 0.9)
        assert len(here.children.forked) == forked
        here.timer.advance(expected * 0.2)
        forked += 1
        assert len(here.children.forked) == forked
    for _ in range(20):
        here.child.die(exit_code=1)
        here.timer.advance(REFORK_DELAYS[1])
    assert len(here.children.forked) == forked + 20


def test_workers_that_break_their_channel_before_they_are_ready_are_replaced_with_growing_delays() -> None:
    here = Setup()
    here.child.die(exit_code=1)
    for expected in (0.1, 0.2, 0.4):
        forked = len(here.children.forked)
        here.pool.broke(here.child, "rubbish")
        here.child.die(signal="SIGKILL")
        here.timer.advance(expected * 0.9)
        assert len(here.children.forked) == forked
        here.timer.advance(expected * 0.2)
        assert len(here.children.forked) == forked + 1


def test_many_places_that_cannot_be_filled_are_tried_again_as_often_as_one() -> None:
    here = Setup(count=8)
    for child in here.children.forked[:8]:
        child.die(exit_code=1)
    for expected in (0.1, 0.2, 0.4, 0.8):
        forked = len(here.children.forked)
        for child in here.children.forked[-8:]:
            child.die()
        here.timer.advance(expected * 0.9)
        assert len(here.children.forked) == forked
        here.timer.advance(expected * 0.2)
        assert len(here.children.forked) == forked + 8


def test_workers_that_die_as_soon_as_they_are_ready_are_replaced_with_growing_delays() -> None:
    here = Setup()
    for _ in range(200):
        here.timer.advance(0.05)
        if here.pool.workers:
            here.child.come_up()
            here.child.die(exit_code=1)
    assert len(here.children.forked) < 10


def test_a_worker_that_has_done_a_job_or_lived_a_while_is_replaced_at_once() -> None:
    here = Setup()
    for id in range(5):
        here.send(id)
        here.child.run_next()
        here.child.die(exit_code=1)
        here.child.come_up()
        here.timer.advance(2.0)
        here.child.die(signal="SIGKILL")
        here.child.come_up()
    assert len(here.children.forked) == 11


def test_no_new_child_after_a_stop_begins() -> None:
    here = Setup(count=3)
    here.pool.stop()
    for child in list(here.children.forked):
        assert child.retired
        child.die(exit_code=0)
    here.timer.advance(60)
    assert len(here.children.forked) == 3
    assert [event.cause for event in here.events if isinstance(event, WorkerDied)] == ["stopped"] * 3


def test_a_stop_ends_in_good_order_those_that_are_starting_too() -> None:
    here = Setup(count=2)
    starting, idle = here.children.forked
    here.pool.workers[starting.number].state = State.STARTING
    here.pool.stop()
    assert [(child.retired, child.killed) for child in (starting, idle)] == [(True, [])] * 2


def test_one_retired_before_it_was_born_has_not_crashed() -> None:
    here = Setup(count=1)
    (unborn,) = here.children.forked
    here.pool.stop()
    unborn.pid = None
    here.pool.died(unborn, Death(0, unborn="no nursery was ready"))
    assert [event.cause for event in here.events if isinstance(event, WorkerDied)] == ["stopped"]


def test_a_worker_is_recycled_after_max_jobs() -> None:
    here = Setup(max_jobs=2)
    assert here.pool._has_room(here.worker)
    here.send(1, 2)
    here.child.run_next()
    assert not here.child.retired
    here.child.run_next()
    assert here.children.forked[0].retired
    assert len(here.children.forked) == 2


def test_a_worker_is_recycled_once_it_has_grown_past_max_memory() -> None:
    here = Setup(max_memory=50_000_000)
    here.send(1)
    here.child.rss = 60_000_000
    here.child.run_next()
    assert here.children.forked[0].retired
    born_big = here.child
    born_big.rss = 70_000_000
    born_big.come_up()
    here.pool.send(here.pool.workers[born_big.number], [make_lease(2)])
    born_big.run_next()
    assert not born_big.retired


def test_a_worker_that_is_never_seen_empty_is_recycled_as_well_once_it_has_grown() -> None:
    here = Setup(max_memory=50_000_000)
    big = here.child
    big.rss = 60_000_000
    here.send(*range(1, 6))
    here.timer.advance(WEIGH_EVERY / 2)
    big.run_next()
    assert not big.retired, "it is not weighed at every reply"
    here.timer.advance(WEIGH_EVERY / 2)
    big.start_next()
    big.finish()
    big.start_next()
    big.drain()
    assert big.retired and len(here.children.forked) == 2
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
    assert here.pool.open_workers() == []
    for _ in range(6):
        here.child.run_next()
    assert here.pool.open_workers() == [here.worker]


def test_fewer_workers_are_wanted_idle_ones_go_first() -> None:
    here = Setup(count=2)
    busy, _ = here.pool.workers.values()
    here.pool.send(busy, [make_lease(1)])
    here.pool.resize(1)
    assert (here.children.forked[0].retired, here.children.forked[1].retired) == (False, True)


def test_more_workers_asked_for_before_there_is_a_nursery_come_with_it() -> None:
    here = Setup(count=1)
    pool = Pool(1, here.bus, here.timer)
    pool.resize(3)
    pool.open(here.children, here.heard)
    assert len(pool.workers) == 3


def test_new_settings_replace_every_worker_and_drop_no_job() -> None:
    here = Setup()
    here.send(1, 2)
    here.child.start_next()
    fresh = FakeChildren(here.pool)
    here.pool.renew(fresh)
    assert here.children.forked[0].retired and len(fresh.forked) == 1
    assert [lease.id for lease in here.heard.returned] == [2]
    here.children.forked[0].finish()
    here.children.forked[0].die(exit_code=0)
    assert [o.lease.id for o in here.heard.outcomes] == [1]
    assert len(fresh.forked) == 1


def test_new_settings_wait_for_no_delay_that_the_old_ones_earned() -> None:
    here = Setup(count=2)
    for _ in range(10):
        for child in here.children.forked[-2:]:
            child.die(exit_code=1)
        here.timer.advance(REFORK_DELAYS[1])
    for child in here.children.forked[-2:]:
        child.die(exit_code=1)
    fresh = FakeChildren(here.pool)
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
    born, unborn = here.children.forked
    unborn.pid = None
    here.pool.renew(here.children)
    assert (born.retired, unborn.retired) == (True, False)
    assert len(here.children.forked) == 3
