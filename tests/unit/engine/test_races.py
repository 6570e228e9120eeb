"""Races of the engine: answers that cross, limits that leave nothing to do, and states that nothing would end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from supervisor.engine.limits import DEFAULT_LIMITS, Limits
from supervisor.engine.store_writer import Purpose
from supervisor.errors import StoreBroken, StoreUnavailable
from supervisor.events import ClockStepped, JobsSettled, JobsStale, LeasesRecovered, QueueDepths
from supervisor.jobs import Lease, Outcome, Policy
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.records import ClaimRequest, EnqueueRow, Resolve
from tests.stores.factories import dead
from tests.unit.fakes import FakeWorker
from tests.unit.virtual import Virtual
from tests.unit.wrapped_store import WrappedStore


def claims(here: Virtual) -> int:
    return sum(isinstance(event, QueueDepths) for event in here.events)


def resolve(handler: str, queue: str) -> Policy:
    return Policy(max_retries=0)


def claim_elsewhere(here: Virtual, count: int = 1, owner: str = "them", max_retries: int = 0) -> Any:
    """Return the store of another owner, and its leases."""
    other = MemoryStore(state=here.store.state)  # type: ignore[attr-defined]
    other.join(owner, "there", 2)
    other.enqueue([EnqueueRow("work", "null")] * count)
    return other, other.claim([ClaimRequest("default", count, count, count, 100)], 30.0, lambda *_: Policy(max_retries))


def test_a_supervisor_is_announced_at_once_when_the_clock_was_set() -> None:
    here = Virtual()
    here.serve()
    for step in (7200.0, -7200.0):
        here.loop.advance(1.0)
        here.engine.maintain("running")
        here.wall.step(step)
        here.engine.maintain("running")
        status = here.store.stats()
        assert status["supervisors"][0]["seen_at"] == status["at"]


def test_a_dead_letter_that_is_not_published_here_does_not_keep_the_fetcher_busy() -> None:
    here = Virtual()
    other, leases = claim_elsewhere(here)
    other.settle([dead(lease) for lease in leases])
    here.serve()
    before = claims(here)
    timers = 0
    run, here.loop.call_at = here.loop.call_at, lambda *args: count(*args)  # type: ignore[method-assign]

    def count(when: float, callback: Any, *args: Any) -> Any:
        nonlocal timers
        timers += 1
        assert timers < 100, "a timer is armed again and again for now"
        return run(when, callback, *args)

    here.loop.advance(DEFAULT_LIMITS.poll * 2)
    assert claims(here) - before <= 3


def test_a_job_recovered_from_another_supervisor_starts_here_at_once() -> None:
    here = Virtual()
    here.serve()
    other, (lease,) = claim_elsewhere(here)
    other.leave()
    here.engine.maintain("running")
    assert here.process.permits
    assert here.state(lease.id) == "in_flight"


def test_a_gap_during_the_check_after_another_one_needs_a_check_of_its_own() -> None:
    here = Virtual()
    here.serve()
    here.enqueue("work")
    here.notify()
    keeper, leases = here.engine.lease_keeper, here.engine.leases
    here.writer.eager = False
    for _ in range(2):
        keeper.gap_ended()
        here.loop.create_task(keeper.check_after_gap())
    here.writer.step_one()
    assert not leases.checked_since_gap
    here.writer.step()
    assert leases.checked_since_gap


def test_a_lease_whose_outcome_is_settled_while_leases_are_checked_is_not_stale() -> None:
    here = Virtual()
    here.serve()
    (id,) = here.enqueue("work")
    here.notify()
    here.writer.eager = False
    here.process.run_next()
    here.loop.create_task(here.engine.lease_keeper.check())
    here.writer.step()
    assert here.settled() == [id]
    assert not any(isinstance(event, JobsStale) for event in here.events)


class Contended(WrappedStore):
    """Another supervisor has locked all ready jobs, until `locked` is False."""

    locked = True

    def claim(self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve) -> list[Lease]:
        return [] if self.locked else self.inner.claim(takes, ttl, resolve)


def test_a_job_that_another_supervisor_locks_and_unlocks_starts_here_soon() -> None:
    here = Virtual(store=(store := Contended()))
    here.serve()
    (id,) = here.enqueue("work")
    here.engine.fetcher.notify()
    here.loop.advance(0.2)
    assert here.state(id) == "ready", "it was locked at the second look too"
    store.locked = False
    here.loop.advance(0.2)
    assert here.state(id) == "in_flight"


def test_jobs_that_others_keep_locked_are_looked_for_less_and_less_often() -> None:
    here = Virtual(store=(store := Contended()))
    here.serve()
    here.enqueue("work")
    here.engine.fetcher.notify()
    before = claims(here)
    for _ in range(600):
        here.loop.advance(0.1)
        here.process.send_heartbeat()
    assert claims(here) - before < 40
    here.loop.advance(1.0)
    store.locked = False
    here.engine.fetcher.notify()
    store.locked = True
    (id,) = here.enqueue("work")
    here.process.run_next(took=0.001)
    here.engine.fetcher.notify()
    assert here.state(id) == "ready"
    store.locked = False
    here.loop.advance(0.2)
    assert here.state(id) == "in_flight", "after a claim that brought jobs the looks are close together again"


def lose_machine(here: Virtual, count: int) -> None:
    claim_elsewhere(here, count, owner=f"far {count}")
    here.wall.step(31.0)


def recovered(here: Virtual) -> int:
    return sum(len(event.outcomes) for event in here.events if isinstance(event, LeasesRecovered))


IN_SMALL_PARTS = Limits(expired_seen_at_once=4, recovered_at_once=3)


def test_all_leases_of_a_machine_that_is_lost_are_recovered_at_the_same_time() -> None:
    here = Virtual(engine_limits=IN_SMALL_PARTS, lease={"ttl": 30.0})
    lose_machine(here, 21)
    here.loop.create_task(here.engine.recovery.sweep())
    here.loop.advance(14.9)
    here.loop.create_task(here.engine.recovery.sweep())
    assert recovered(here) == 0
    here.loop.advance(0.1)
    here.loop.create_task(here.engine.recovery.sweep())
    assert recovered(here) == 21


def test_leases_of_a_provably_dead_owner_are_recovered_at_once_however_many_others_have_expired() -> None:
    here = Virtual(engine_limits=IN_SMALL_PARTS, lease={"ttl": 30.0})
    lose_machine(here, 21)
    other, _ = claim_elsewhere(here, 9)
    other.leave()
    here.loop.create_task(here.engine.recovery.sweep())
    assert recovered(here) == 9


class Overtaken(WrappedStore):
    """Another supervisor is the first to recover or settle a job, or the store refuses this one to, until `overtaken` is False."""

    overtaken = True
    error: StoreUnavailable | None = None

    def recover(self, outcomes: Sequence[Outcome]) -> list[int]:
        if self.error is not None:
            raise self.error
        return self.settle(outcomes)

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        if self.overtaken:
            return [outcome.lease.id for outcome in outcomes]
        return self.inner.settle(outcomes)


@pytest.mark.parametrize("error", [None, StoreBroken("no right")])
def test_a_recovery_that_does_not_come_about_spends_no_retry_budget(error: StoreUnavailable | None) -> None:
    here = Virtual(store=(store := Overtaken()), retry={"budget": {"limit": 1, "per": 3600.0}})
    store.overtaken = False
    (id,) = here.enqueue("work")
    here.lose(id, times=2)  # from the third time on it is blamed
    store.overtaken, store.error = True, error
    here.lose(id)
    assert recovered(here) == 2
    store.overtaken, store.error = False, None
    here.loop.create_task(here.engine.recovery.recover_all())
    outcomes = [outcome for event in here.events if isinstance(event, LeasesRecovered) for outcome in event.outcomes]
    assert [(outcome.counted, outcome.delay) for outcome in outcomes] == [(False, 0.0), (False, 0.0), (True, 0.5)]


def test_an_outcome_that_is_stale_spends_no_retry_budget() -> None:
    here = Virtual(store=(store := Overtaken()), retry={"budget": {"limit": 1, "per": 3600.0}})
    here.enqueue("work")
    here.serve()
    here.process.run_next(kind="failed", error={"type": "Oops"})
    assert here.settled() == []
    store.overtaken = False
    here.enqueue("work")
    here.notify()
    here.process.run_next(kind="failed", error={"type": "Oops"})
    (outcome,) = [outcome for event in here.events if isinstance(event, JobsSettled) for outcome in event.outcomes]
    assert outcome.counted and outcome.delay == 0.5


def test_leases_forgotten_in_the_middle_of_a_sweep_count_as_not_seen() -> None:
    here = Virtual(engine_limits=IN_SMALL_PARTS, lease={"ttl": 30.0})
    lose_machine(here, 6)
    here.loop.create_task(here.engine.recovery.sweep())
    here.loop.advance(10.0)
    here.writer.eager = False
    here.loop.create_task(here.engine.recovery.sweep())
    here.engine.recovery.forget()
    here.writer.eager = True
    here.writer.step()
    here.loop.advance(10.0)
    here.loop.create_task(here.engine.recovery.sweep())
    assert recovered(here) == 0


def test_a_lease_whose_row_was_locked_is_observed_anew() -> None:
    """Its owner waits for the same lock, and has time to get it first."""
    here = Virtual(lease={"ttl": 30.0})
    lose_machine(here, 2)
    recover = here.store.recover
    here.store.recover = lambda outcomes: [outcome.lease.id for outcome in outcomes]  # type: ignore[method-assign]

    def sweep_after(seconds: float) -> int:
        here.loop.advance(seconds)
        here.loop.create_task(here.engine.recovery.sweep())
        return recovered(here)

    sweep_after(0.0)
    assert sweep_after(15.0) == 0
    here.store.recover = recover  # type: ignore[method-assign]
    assert sweep_after(1.0) == 0
    assert sweep_after(14.5) == 0
    assert sweep_after(0.5) == 2


def test_a_job_that_comes_due_before_the_first_worker_is_ordered_starts_on_that_worker() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.lose(id, times=3)  # the third time it is blamed, so it is retried later
    here.loop.advance(60.0)  # a start may take long
    assert here.state(id) == "scheduled"
    here.serve()
    assert here.process.permits


def answer_unknown(process: FakeWorker) -> None:
    process.run_next(kind="unknown", error={"type": "UnknownHandler"})


def test_a_worker_without_a_handler_that_others_have_is_replaced_and_its_job_runs_on_the_new_one() -> None:
    here = Virtual(unknown_handler={"grace": 0.001})
    (id,) = here.enqueue("work")
    here.serve()
    broken = here.process
    answer_unknown(broken)
    assert broken.retired
    assert here.state(id) == "ready"
    _, good = here.backend.forked
    good.come_up()
    good.run_next()
    assert here.state(id) == "succeeded"


def test_jobs_of_a_handler_that_no_worker_can_import_are_released_for_later_and_others_run() -> None:
    here = Virtual(handlers=("work", "torn"), unknown_handler={"grace": 100.0}, retry={"backoff": {"max": 30.0}})
    here.engine.watchdog.idle_heartbeat_timeout = None
    (torn,) = here.enqueue("torn")
    here.serve()
    for _ in range(300):
        here.loop.advance(1.0)
        while (process := here.backend.forked[-1]).permits:
            answer_unknown(process)
            if process.retired:
                process.die(exit_code=0)
                here.backend.forked[-1].come_up()
    assert (here.state(torn), here.store.get(torn)["retries"]) == ("scheduled", 0)  # type: ignore[index]
    assert len(here.backend.forked) < 20
    (id,) = here.enqueue("work")
    here.notify()
    here.backend.forked[-1].run_next()
    assert here.state(id) == "succeeded"


def test_each_job_of_a_missing_handler_waits_for_the_whole_grace() -> None:
    """Another supervisor may serve the handler."""
    here = Virtual(unknown_handler={"grace": 100.0}, retry={"backoff": {"max": 30.0}})
    here.engine.watchdog.idle_heartbeat_timeout = None
    here.serve()
    (first,) = here.enqueue("new")
    here.notify()
    here.loop.advance(130.0)
    assert here.state(first) == "failed"
    (second,) = here.enqueue("new")
    here.store.retry([first])
    here.notify()
    here.loop.advance(90.0)
    assert [here.state(id) for id in (first, second)] == ["scheduled", "scheduled"]
    here.loop.advance(40.0)
    assert [here.state(id) for id in (first, second)] == ["failed", "failed"]


def test_replies_read_after_a_gap_start_no_job_before_the_leases_are_checked() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 3)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    here.loop.advance(0.1)
    assert len(here.engine.buffers) == 1
    here.loop.stand_still(90)
    here.writer.unavailable = True
    here.process.finish(took=0.001)  # not read before the supervisor goes on
    here.loop.advance(0.0)
    assert not here.pool.workers[1].sent
    here.store.cancel([ids[2]])
    here.writer.unavailable = False
    here.writer.step()
    assert not here.process.permits


def test_an_extend_submitted_before_a_gap_does_not_count_as_a_check_after_it() -> None:
    here = Virtual(lease={"ttl": 30.0})
    ids = here.enqueue(*["work"] * 3)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    here.loop.advance(0.1)
    here.writer.unavailable = True
    here.engine.lease_keeper.extend_soon()
    here.loop.stand_still(90)
    here.process.finish(took=0.001)
    here.process.drain()
    assert not here.pool.workers[1].sent
    here.writer.unavailable = here.writer.eager = False
    call, purpose, answer = here.writer.waiting.pop(0)  # the extend that was submitted before the gap
    answer.finish(call, here.store, purpose)
    assert not here.pool.workers[1].sent
    here.store.cancel([ids[2]])
    here.writer.step()
    assert not here.process.permits


def test_a_job_claimed_again_while_it_runs_under_a_lost_lease_does_not_run_twice_at_once() -> None:
    here = Virtual(workers=2)
    (id,) = here.enqueue("work")
    here.serve()
    first = next(worker for worker in here.pool.workers.values() if worker.sent)
    first.process.start_next()  # type: ignore[attr-defined]
    here.store.cancel([id])
    here.store.retry([id])
    here.notify()
    assert first.process.killed == [False]  # type: ignore[attr-defined]
    assert [event.what for event in here.events if isinstance(event, JobsStale)] == ["claim"]
    assert here.state(id) == "in_flight"


def test_a_cancelled_job_behind_replies_not_yet_read_is_killed() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 4)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    here.process.finish()
    assert here.process.start_next().id == ids[2]
    here.store.cancel([ids[2]])
    here.engine.maintain("running")
    assert here.backend.forked[0].killed == [False]


def test_jobs_that_run_are_marked_as_started_by_the_next_settle() -> None:
    here = Virtual(workers=2)
    here.enqueue("work", "work")
    here.serve()
    one, other = here.backend.forked
    one.start_next()
    running = other.start_next()
    here.loop.advance(0.01)
    assert here.store.get(running.id)["started_at"] is None  # type: ignore[index]
    one.finish()
    one.drain()
    assert here.store.get(running.id)["started_at"] is not None  # type: ignore[index]


def test_a_cancelled_job_that_waits_in_a_worker_is_not_started() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 4)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    here.store.cancel([ids[2]])
    here.engine.maintain("running")
    here.process.finish()
    here.process.drain()
    assert here.process.start_next().id == ids[3]
    assert here.process.killed == []


def test_leases_whose_claim_was_never_answered_are_released_although_none_is_held() -> None:
    here = Virtual(workers=1)
    here.engine.serve(here.backend)  # no worker is ready yet
    (id,) = here.enqueue("work")
    here.store.claim([ClaimRequest("default", 1, 1, 1, 100)], 30.0, resolve)  # an answer that was lost
    for _ in range(20):
        here.engine.maintain("running")
    assert here.state(id) == "ready"


def test_pruning_of_many_jobs_runs_once_at_a_time() -> None:
    here = Virtual()
    here.serve()
    here.store.prune = lambda retention, limit, run: limit  # type: ignore[method-assign]
    here.writer.eager = False
    for _ in range(60):
        here.loop.advance(1.0)
        here.engine.maintain("running")
        for _ in range(20):
            if here.writer.waiting:
                call, purpose, answer = here.writer.waiting.pop(0)
                answer.finish(call, here.store, purpose)
    assert len(here.writer.waiting) <= 2


def test_a_step_of_the_clock_is_followed_by_an_extend_at_once() -> None:
    here = Virtual(lease={"ttl": 300.0})
    here.enqueue("work")
    here.serve()
    here.process.start_next()
    here.engine.maintain("running")
    here.wall.step(3600.0)
    other = MemoryStore(state=here.store.state)  # type: ignore[attr-defined]
    other.join("them", "there", 2)
    assert other.expired_leases(10) != []
    here.loop.advance(1.0)
    here.engine.maintain("running")
    assert other.expired_leases(10) == []
    assert [event.seconds for event in here.events if isinstance(event, ClockStepped)] == [3600.0]


def test_a_suspended_machine_has_not_set_its_clock() -> None:
    here = Virtual()
    here.serve()
    here.wall.step(3600.0)
    here.suspended += 3600.0
    here.loop.advance(1.0)
    here.engine.maintain("running")
    assert not any(isinstance(event, ClockStepped) for event in here.events)


def test_what_was_seen_expired_before_a_step_of_the_clock_proves_nothing() -> None:
    here = Virtual(lease={"ttl": 30.0})
    here.serve()
    claim_elsewhere(here)
    here.wall.step(3600.0)
    for _ in range(14):
        here.loop.advance(1.0)
        here.engine.maintain("running")
    here.wall.step(-3600.0)
    here.wall.step(3605.0)
    for _ in range(10):
        here.loop.advance(1.0)
        here.engine.maintain("running")
    assert not any(isinstance(event, LeasesRecovered) for event in here.events)


def test_a_clock_that_is_wrong_for_some_minutes_deletes_no_ended_jobs() -> None:
    here = Virtual(retention={"succeeded": 86_400.0})
    (id,) = here.enqueue("work")
    here.serve()
    here.process.run_next()

    def maintain_for(seconds: int) -> None:
        for _ in range(seconds):
            here.loop.advance(1.0)
            here.engine.maintain("running")

    here.wall.step(40 * 86_400.0)
    maintain_for(600)
    here.wall.step(-40 * 86_400.0)
    maintain_for(20)
    assert here.state(id) == "succeeded"
    here.wall.step(40 * 86_400.0)
    maintain_for(3700)
    assert here.store.get(id) is None


def test_retries_that_come_due_behind_a_long_job_are_not_buffered() -> None:
    here = Virtual(handlers=("flaky", "work"), retry={"backoff": {"base": 5.0, "factor": 1.0, "jitter": "none"}})
    ids = here.enqueue(*["flaky"] * 40)
    here.serve()
    for _ in ids:
        here.process.run_next(kind="failed", took=1.0, error={"type": "Oops"})
        here.loop.advance(0.1)
    here.enqueue("work", priority=100)
    here.notify()
    assert here.process.start_next().handler == "work"
    for _ in range(100):
        here.loop.advance(0.1)
        here.process.send_heartbeat()
    assert len(here.engine.buffers) <= 1


def test_many_jobs_with_an_unknown_handler_do_not_cause_many_others_to_be_buffered() -> None:
    here = Virtual()
    here.enqueue(*["nope"] * 300)
    ids = here.enqueue(*["work"] * 600)
    here.serve()
    assert here.process.permits
    assert sum(here.state(id) == "in_flight" for id in ids) <= 2


def test_settling_all_waits_for_the_jobs_of_a_claim_under_way() -> None:
    here = Virtual()
    here.serve()
    (id,) = here.enqueue("work")
    here.writer.eager = False
    here.notify()
    call, _, answer = here.writer.waiting.pop()
    answer.value = call(here.store)  # the store has claimed it, the loop has not seen the answer yet
    here.engine.fetcher.close()
    finished: list[bool] = []

    async def finish() -> None:
        finished.append(here.engine.committer.idle)

    here.engine.committer.finish = finish  # type: ignore[method-assign]
    here.loop.create_task(here.engine.settle_all())
    assert finished == []
    answer.finish(lambda store: answer.value, here.store, Purpose.CLAIM)
    here.writer.step()
    assert finished == [False]
    assert here.state(id) == "ready"


def test_jobs_released_as_too_many_are_claimed_when_a_worker_is_free() -> None:
    here = Virtual()
    here.enqueue(*["nope"] * 300)
    ids = here.enqueue(*["work"] * 20)
    here.serve()
    for _ in ids:
        here.process.run_next(took=10.0)
    assert {here.state(id) for id in ids} == {"succeeded"}


def test_jobs_released_to_others_that_took_none_are_claimed_when_a_worker_is_free() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 10)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    here.neighbour_idles()
    for _ in range(4):
        here.loop.advance(0.6)
        here.process.send_heartbeat()
    here.engine.maintain("running")
    assert [here.state(id) for id in ids[2:]] == ["ready"] * 8
    here.process.finish(took=2.4)
    here.process.drain()
    assert here.pool.idle_count() == 0


def test_calls_do_not_pile_up_while_the_store_is_slow() -> None:
    here = Virtual()
    here.serve()
    claim_elsewhere(here)
    here.enqueue("work", "work", "work")
    here.notify()
    assert len(here.engine.buffers) or here.process.permits
    here.writer.eager = False
    for _ in range(100):
        here.engine.maintain("running")
        here.engine.store_notified()
        here.loop.advance(1.0)
    assert len(here.writer.waiting) < 10
    assert len(here.engine.tasks) < 10
