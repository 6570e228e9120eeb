"""The engine as a whole, step by step: claims, dispatch, outcomes, leases and recovery."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from supervisor.config.settings import Settings
from supervisor.engine.coordinator import FORCED_SECONDS, KILL_SECONDS
from supervisor.engine.lease_keeper import HeldExit
from supervisor.engine.limits import Limits
from supervisor.engine.store_writer import Purpose
from supervisor.errors import RowRefused
from supervisor.events import JobCancelled, JobsReleased, JobsStale, LeasesRecovered, WorkerExited
from supervisor.jobs import Cause, JobState, Outcome, Policy
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.records import ClaimRequest
from supervisor.workers.blame import LEASE_LOST
from supervisor.workers.interface import ExitReport
from tests.unit.jumping_loop import JumpingLoop
from tests.unit.virtual import Virtual
from tests.unit.wrapped_store import WrappedStore


def pass_time(here: Virtual, seconds: float) -> None:
    for _ in range(round(seconds / 0.5)):
        here.loop.advance(0.5)
        for worker in here.pool.workers.values():
            worker.process.send_heartbeat()


def finish_for(here: Virtual, seconds: float, **how: Any) -> int:
    """The one worker runs its next job for so long. Return the id of the job."""
    lease = here.process.start_next()
    pass_time(here, seconds)
    here.process.finish(took=seconds, **how)
    here.process.drain()
    return lease.id


def test_a_due_retry_starts_next_after_the_job_that_runs() -> None:
    here = Virtual(handlers=("A1", "A2", "A3", "B1", "B2", "B3"), retry={"backoff": {"base": 2.0, "jitter": "none"}})
    names = dict(
        zip(here.enqueue("A1", "A2", "A3", "B1", "B2", "B3"), ("A1", "A2", "A3", "B1", "B2", "B3"), strict=True)
    )
    here.serve()
    order = [names[finish_for(here, 30, kind="failed", error={"type": "Oops"})]]
    order += [names[finish_for(here, 30)] for _ in range(6)]
    assert order == ["A1", "A2", "A1", "A3", "B1", "B2", "B3"]
    assert {here.state(id) for id in names} == {"succeeded"}


def test_two_due_retries_start_before_the_jobs_that_wait() -> None:
    names = ("A1", "C5", "A2", "A3", "B1")
    here = Virtual(handlers=names, retry={"backoff": {"base": 1.0, "jitter": "none"}})
    ids = here.enqueue("A1", "C5")
    here.serve()
    for _ in ids:
        finish_for(here, 0.5, kind="failed", error={"type": "Oops"})
    blocker = here.enqueue("A1")
    here.notify()
    named = dict(zip([*ids, *here.enqueue("A2", "A3", "B1")], names, strict=True))
    assert finish_for(here, 30) == blocker[0]
    assert [named[finish_for(here, 30)] for _ in range(5)] == list(names)


def test_jobs_of_unknown_length_are_claimed_one_for_each_idle_worker() -> None:
    here = Virtual(workers=2)
    ids = here.enqueue(*["work"] * 10)
    here.serve()
    assert [here.state(id) for id in ids] == ["in_flight"] * 2 + ["ready"] * 8
    assert len(here.engine.buffers) == 0


def test_short_jobs_are_held_up_to_100_ms_of_work_a_worker() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 1000)
    here.serve()
    here.process.run_next(took=0.001)
    assert sum(here.state(id) == "in_flight" for id in ids) == 100
    assert len(here.pool.workers[1].sent) == 10


def test_a_delayed_job_behind_a_ready_one_starts_when_it_is_due() -> None:
    here = Virtual()
    here.enqueue("work")
    (id,) = here.enqueue("work", delay=1.0)
    here.serve()
    here.process.run_next()
    here.loop.advance(0.9)
    assert here.state(id) == "scheduled"
    here.loop.advance(0.2)
    assert here.state(id) == "in_flight"


def reload(here: Virtual, **settings: Any) -> None:
    here.engine.renew(Settings(**{"workers": {"count": 1}, **settings}), here.backend, here.engine.config.reports)
    here.backend.forked[-1].come_up()


def test_jobs_of_a_queue_that_a_reload_adds_start_at_once() -> None:
    here = Virtual(served=("default",))
    (id,) = here.enqueue("work", queue="new")
    here.serve()
    assert here.state(id) == "ready"
    reload(here, workers={"count": 1, "queues": ["default", "new"]})
    assert here.state(id) == "in_flight"


def test_jobs_that_are_held_at_a_reload_run_under_the_new_settings() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 10)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    assert len(here.engine.leases) == 9
    reload(here, retry={"urgent": 7})
    assert here.engine.buffers.of_sync.of("default").retry.urgent == 7
    before, after = here.backend.forked
    before.finish()
    before.die(exit_code=0)
    while after.permits:
        after.run_next(took=0.001)
    assert {here.state(id) for id in ids} == {"succeeded"}


def test_nothing_is_claimed_while_no_worker_can_run_it() -> None:
    here = Virtual()
    ids = here.enqueue("work")
    here.engine.serve(here.backend)
    assert here.state(ids[0]) == "ready"
    here.backend.forked[0].come_up()
    assert here.state(ids[0]) == "in_flight"


def test_the_buffered_jobs_of_a_paused_queue_are_released() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 100)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    here.store.pause("default", True)
    here.loop.advance(0.1)
    here.engine.maintain("running")
    held = [id for id in ids if here.state(id) == "in_flight"]
    assert held == [ids[1]]


def test_queues_take_turns() -> None:
    here = Virtual()
    here.enqueue(*["work"] * 20, queue="a")
    here.enqueue(*["work"] * 20, queue="b")
    here.serve()
    queues = []
    for _ in range(8):
        lease = here.process.start_next()
        queues.append(lease.queue)
        here.process.finish(took=1.0)
        here.process.drain()
    assert sorted(queues) == ["a"] * 4 + ["b"] * 4


def test_a_job_with_an_unknown_handler_is_released_without_a_retry_and_fails_after_the_grace() -> None:
    here = Virtual(unknown_handler={"grace": 100.0}, retry={"backoff": {"max": 30.0}})
    (id,) = here.enqueue("nope")
    here.serve()
    job = here.store.get(id)
    assert job is not None and (job["state"], job["retries"]) == ("scheduled", 0)
    pass_time(here, 95)
    assert here.state(id) == "scheduled"
    pass_time(here, 30)
    job = here.store.get(id)
    assert job is not None and (job["state"], job["errors"][-1]["cause"]) == ("failed", "unknown_handler")


def test_outcomes_are_kept_while_the_store_is_unavailable() -> None:
    here = Virtual()
    ids = here.enqueue("work", "work")
    here.serve()
    here.writer.unavailable = True
    here.process.run_next()
    assert here.state(ids[0]) == "in_flight"
    assert len(here.engine.leases) == 1
    here.writer.unavailable = False
    here.writer.step()
    assert here.state(ids[0]) == "succeeded"
    assert here.state(ids[1]) == "in_flight"


def test_a_claim_that_is_answered_after_the_stop_is_released() -> None:
    here = Virtual()
    here.serve()
    (id,) = here.enqueue("work")
    here.writer.eager = False
    here.notify()
    call, _, answer = here.writer.waiting.pop()
    with here.store.transaction():
        answer.value = call(here.store)  # the store has claimed it, the loop has not seen the answer yet
    assert here.state(id) == "in_flight"
    here.engine.fetcher.close()
    answer.finished = True
    for callback in answer._callbacks:
        callback(answer)
    here.writer.eager = True
    here.writer.step()
    assert here.state(id) == "ready"


def test_a_stale_outcome_changes_nothing_and_is_counted() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.serve()
    here.store.cancel([id])
    here.process.run_next()
    assert here.state(id) == "cancelled"
    assert [event.what for event in here.events if isinstance(event, JobsStale)] == ["settle"]
    assert len(here.engine.leases) == 0


def test_the_worker_of_a_cancelled_job_is_killed_and_the_jobs_behind_it_run_elsewhere() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 3)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    here.store.cancel([ids[1]])
    here.engine.maintain("running")
    assert here.process.killed == [False]
    here.backend.forked[0].die(signal="SIGKILL")
    here.backend.forked[1].come_up()
    here.process.run_next()
    assert [here.state(id) for id in ids] == ["succeeded", "cancelled", "succeeded"]


def lost(here: Virtual) -> list[tuple[str, list[int]]]:
    """The reported losses of leases, as (reason, job ids)."""
    reported = []
    for event in here.events:
        if isinstance(event, JobCancelled):
            reported.append(("cancelled", [event.lease.id]))
        elif isinstance(event, JobsStale):
            reported.append((event.what, [lease.id for lease in event.leases]))
    return reported


def test_a_cancelled_job_is_reported_as_cancelled_and_not_as_stale() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 3)
    here.serve()
    here.process.start_next()
    here.store.cancel(ids[:2])
    here.engine.maintain("running")
    assert here.backend.forked[0].killed == [False]
    assert lost(here) == [("cancelled", [ids[0]])]
    here.backend.forked[0].die(signal="SIGKILL")
    assert exits(here) == ["cancelled"]


def test_the_exit_of_a_worker_is_held_until_it_is_known_whether_its_job_was_cancelled() -> None:
    here = Virtual()
    here.enqueue("work")
    here.serve()
    here.process.start_next()
    slot = next(iter(here.pool.workers.values()))
    held = HeldExit(slot, here.bus)
    here.pool.kill(slot, LEASE_LOST)
    here.backend.forked[0].die(signal="SIGKILL")
    assert exits(here) == []
    held.report("cancelled")
    held.report("lease_lost")
    assert exits(here) == ["cancelled"]


def exits(here: Virtual) -> list[str]:
    return [event.cause for event in here.events if isinstance(event, WorkerExited)]


def test_of_many_lost_leases_only_those_of_running_jobs_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Virtual(engine_limits=Limits(checked_leases=2))
    _, *ids = here.enqueue(*["work"] * 4)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    here.store.cancel(ids)
    asked, get = [], here.store.get
    monkeypatch.setattr(here.store, "get", lambda job: asked.append(job) or get(job))
    here.engine.maintain("running")
    assert asked == ids[:1]
    assert ("cancelled", ids[:1]) in lost(here)


def test_a_job_that_another_supervisor_took_over_is_reported_as_stale_and_not_as_cancelled() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.serve()
    here.process.start_next()
    here.store.cancel([id])
    here.store.retry([id])
    other = MemoryStore(state=here.store.state)  # type: ignore[attr-defined]
    other.join("them", "there", 2)
    assert other.claim([ClaimRequest("default", 1, 1, 1, 100)], 30.0, lambda *_: Policy())
    here.engine.maintain("running")
    assert here.backend.forked[0].killed == [False]
    assert lost(here) == [("check", [id])]


def test_a_worker_whose_lease_is_lost_is_killed_before_the_reason_is_looked_up() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.serve()
    here.process.start_next()
    here.store.cancel([id])
    here.writer.eager = False
    here.engine.maintain("running")
    while not here.backend.forked[0].killed:
        here.writer.step_one()
    assert here.backend.forked[0].killed == [False] and lost(here) == []
    here.writer.step()
    assert lost(here) == [("cancelled", [id])]


def test_leases_are_extended_with_start_marks_every_third_of_their_time_to_live() -> None:
    here = Virtual(lease={"ttl": 30.0})
    (id,) = here.enqueue("work")
    here.serve()
    here.process.start_next()
    pass_time(here, 100)
    other = MemoryStore(state=here.store.state)  # type: ignore[attr-defined]
    other.join("them", "there", 2)
    assert other.expired_leases(10) == []
    job = here.store.get(id)
    assert job is not None and job["started_at"] is not None
    here.engine.lease_keeper.stop()
    pass_time(here, 31)
    assert [expired.lease.id for expired in other.expired_leases(10)] == [id]


def test_after_a_gap_leases_are_checked_before_anything_is_dispatched() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 3)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    here.loop.advance(0.1)
    assert len(here.engine.buffers) == 1
    here.loop.stand_still(90)
    here.writer.unavailable = True
    here.process.finish(took=0.001)
    here.process.drain()
    assert not here.pool.workers[1].sent
    here.store.cancel([ids[2]])
    here.writer.unavailable = False
    here.writer.step()
    here.loop.advance(0.1)
    assert not here.process.permits
    assert [here.state(id) for id in ids] == ["succeeded", "succeeded", "cancelled"]
    (next_id,) = here.enqueue("work")
    here.notify()
    assert here.state(next_id) == "in_flight", "it goes on"


def test_the_status_has_what_each_worker_does_and_those_that_are_stuck_in_the_kernel() -> None:
    here = Virtual(workers=2)
    (id,) = here.enqueue("work")
    here.serve()
    here.process.start_next()

    def shown() -> list[tuple[str, int | None]]:
        rows = here.engine.status("us", "running")["workers"]
        return [(row["state"], row["current_job"] and row["current_job"]["job_id"]) for row in rows]

    assert shown() == [("busy", id), ("idle", None)]
    stuck = here.process
    here.pool.kill(here.pool.workers[1], LEASE_LOST)
    assert shown() == [("ending", id), ("idle", None)]
    stuck.listener.ended(ExitReport(stuck.pid or 0, stuck="state D"))
    assert shown() == [("busy", id), ("starting", None), ("stuck in the kernel: state D", None)]


def test_the_row_of_a_supervisor_is_written_when_it_changes_and_every_third_of_the_time_to_live() -> None:
    here = Virtual(lease={"ttl": 30.0})
    here.serve()
    began, written, announce = here.loop.time(), [], here.store.announce
    here.store.announce = lambda row: written.append(here.loop.time() - began) or announce(row)  # type: ignore[method-assign, func-returns-value]
    for second in range(1, 36):
        here.loop.advance(1.0)
        here.process.send_heartbeat()
        here.engine.maintain("running" if second < 25 else "draining")
    assert written == [1.0, 11.0, 21.0, 25.0, 35.0]


def test_a_row_that_is_written_late_has_the_time_at_which_its_job_was_started() -> None:
    here = Virtual(workers=1)
    here.enqueue("work")
    here.serve()
    here.process.start_next()
    late, submit = [], here.engine.writer.submit

    def submitted(call: Any, purpose: Purpose) -> Any:
        if purpose is not Purpose.ANNOUNCE:
            return submit(call, purpose)
        late.append(call)
        return submit(lambda store: None, purpose)

    here.engine.writer.submit = submitted  # type: ignore[method-assign]
    here.engine.maintain("running")
    here.loop.advance(7.0)
    late[0](here.store)
    (worker,) = here.store.stats()["supervisors"][0]["workers"]
    assert worker["current_job"]["running_for"] == 7.0


class Refusing(WrappedStore):
    """Takes only `refused` outcomes of the `bad` jobs, and none of the `worst`."""

    bad: frozenset[int] = frozenset()
    worst: frozenset[int] = frozenset()

    def settle(self, outcomes: Any) -> list[int]:
        for outcome in outcomes:
            refused = outcome.failure is not None and outcome.failure.cause is Cause.REFUSED
            if outcome.lease.id in self.worst or (outcome.lease.id in self.bad and not refused):
                raise RowRefused("bad row")
        return self.inner.settle(outcomes)


def test_a_batch_that_the_store_refuses_is_halved_until_the_bad_row_stands_alone() -> None:
    store = Refusing()
    here = Virtual(store=store)
    ids = here.enqueue(*["work"] * 9)
    store.bad, store.worst = frozenset({ids[3], ids[7]}), frozenset({ids[5]})
    here.serve()
    here.process.run_next(took=0.001)
    for _ in ids[1:]:
        here.process.start_next()
        here.process.finish()
    here.process.drain()
    states = {id: here.state(id) for id in ids}
    assert {id for id, state in states.items() if state == "failed"} == {ids[3], ids[7]}
    assert states[ids[5]] == "in_flight"
    assert sum(state == "succeeded" for state in states.values()) == 6
    job = here.store.get(ids[3])
    assert job is not None and job["errors"][-1]["cause"] == "refused"


def lose_owner(store: MemoryStore, count: int) -> list[int]:
    """Return the ids of jobs that were claimed by another owner, which is gone."""
    other = MemoryStore(state=store.state)
    other.join("them", "there", 2)
    from supervisor.jobs import Policy
    from supervisor.stores.records import ClaimRequest, EnqueueRow

    ids = other.enqueue([EnqueueRow("work", "null")] * count)
    other.claim([ClaimRequest("default", count, count, count, 100)], 30.0, lambda handler, queue: Policy())
    return ids


def test_leases_of_others_are_recovered_after_they_were_seen_expired_for_half_their_time_to_live() -> None:
    here = Virtual(lease={"ttl": 30.0})
    (id,) = lose_owner(here.store, 1)  # type: ignore[arg-type]
    here.serve()
    for second in range(1, 60):
        pass_time(here, 1)
        here.engine.maintain("running")
        recovered = [event for event in here.events if isinstance(event, LeasesRecovered)]
        if second < 45:
            assert recovered == []
    assert [outcome.lease.id for outcome in recovered[0].outcomes] == [id]
    outcome: Outcome = recovered[0].outcomes[0]
    assert (outcome.state, outcome.counted) == (JobState.READY, False)


def test_what_was_seen_before_an_outage_does_not_count_for_recovery() -> None:
    here = Virtual(lease={"ttl": 30.0})
    lose_owner(here.store, 1)  # type: ignore[arg-type]
    here.serve()
    for _ in range(40):
        pass_time(here, 1)
        here.engine.maintain("running")
    here.engine.recovery.forget()
    for _ in range(14):
        pass_time(here, 1)
        here.engine.maintain("running")
    assert not any(isinstance(event, LeasesRecovered) for event in here.events)


def test_buffered_jobs_are_released_while_another_supervisor_is_idle() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 10)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    pass_time(here, 3)
    here.engine.maintain("running")
    assert len(here.engine.buffers) == 8, "there is no other supervisor"
    here.neighbour_idles()
    here.engine.maintain("running")
    assert [here.state(id) for id in ids] == ["succeeded", "in_flight"] + ["ready"] * 8
    assert [event.reason for event in here.events if isinstance(event, JobsReleased)] == ["others idle"]


@pytest.mark.parametrize("limit", ["half", 1])
def test_retries_hold_at_most_their_share_of_the_workers_while_fresh_jobs_wait(limit: Any) -> None:
    here = Virtual(
        workers=2,
        handlers=("flaky", "work"),
        retry={"max_in_flight": limit, "backoff": {"base": 1.0, "jitter": "none"}},
    )
    here.serve()
    here.enqueue(*["flaky"] * 4)
    here.notify()
    for _ in range(2):
        for process in here.backend.forked:
            process.run_next(kind="failed", took=10.0, error={"type": "Oops"})
    here.enqueue(*["work"] * 20)
    here.loop.advance(2.0)
    running = sorted(worker.sent[0].retries for worker in here.pool.workers.values())
    assert running == [0, 1]


@pytest.mark.parametrize("limit", ["half", 1, "none"])
def test_retries_run_in_all_workers_while_no_fresh_job_waits(limit: Any) -> None:
    here = Virtual(workers=4, retry={"max_in_flight": limit, "backoff": {"base": 1.0, "jitter": "none"}})
    here.serve()
    here.enqueue(*["work"] * 8)
    here.notify()
    for _ in range(2):
        for process in here.backend.forked:
            process.run_next(kind="failed", took=10.0, error={"type": "Oops"})
    here.loop.advance(2.0)
    assert [worker.sent[0].retries for worker in here.pool.workers.values()] == [1] * 4


def test_retries_of_one_queue_have_a_share_of_the_workers_beside_the_retries_of_another() -> None:
    here = Virtual(
        workers=2,
        handlers=("flaky", "work"),
        retry={"max_in_flight": 1, "backoff": {"base": 1.0, "jitter": "none"}},
    )
    here.serve()
    here.enqueue("flaky", "flaky", queue="a")
    here.enqueue("flaky", queue="b")
    here.notify()
    while running := [process for process in here.backend.forked if process.permits]:
        for process in running:
            process.run_next(kind="failed", took=10.0, error={"type": "Oops"})
    for queue in "ab":
        here.enqueue(*["work"] * 20, queue=queue)
    here.loop.advance(2.0)
    running_jobs = [worker.sent[0] for worker in here.pool.workers.values()]
    assert sorted((lease.queue, lease.retries) for lease in running_jobs) == [("a", 1), ("b", 1)]


@pytest.mark.parametrize(("forced", "seconds"), [(False, 60.0 + KILL_SECONDS), (True, FORCED_SECONDS)])
def test_a_second_signal_cuts_short_the_wait_for_workers_that_survive_their_kill(forced: bool, seconds: float) -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 10)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    here.loop.advance(0.1)
    assert len(here.engine.buffers) == 8
    here.engine._loop = loop = JumpingLoop()
    second = asyncio.Event()

    async def drain() -> float:
        began = loop.time()
        await here.engine.drain(60.0, second)
        return loop.time() - began

    if forced:
        second.set()
    assert seconds <= loop.run_until_complete(drain()) <= seconds + 1.0
    assert here.process.killed == [False]
    assert [here.state(id) for id in ids] == ["succeeded", "in_flight"] + ["ready"] * 8
    loop.close()
