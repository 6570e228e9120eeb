"""Outcomes that the store refuses, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from supervisor.engine.committer import SECONDS_BETWEEN_TRIES, TRIES_AT_THE_END
from supervisor.engine.limits import DEFAULT_LIMITS, Limits
from supervisor.errors import RowRefused, RowsLocked
from supervisor.events import JobsLocked, JobsStale, StoreRepaired
from supervisor.jobs import Kind, Outcome
from supervisor.stores.records import Look
from tests.unit.jumping_loop import JumpingLoop
from tests.unit.virtual import Virtual
from tests.unit.wrapped_store import WrappedStore


class WithoutRecords(WrappedStore):
    """Takes no outcome with a failure, and none at all of the jobs in `worst`."""

    worst: frozenset[int] = frozenset()

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        if any(outcome.failure is not None or outcome.lease.id in self.worst for outcome in outcomes):
            raise RowRefused("bad row")
        return self.inner.settle(outcomes)


@pytest.mark.parametrize(("worst", "state"), [(False, "failed"), (True, "in_flight")])
def test_a_job_whose_failure_cannot_be_recorded_is_not_run_forever(worst: bool, state: str) -> None:
    store = WithoutRecords()
    here = Virtual(store=store)
    (id,) = here.enqueue("work")
    store.worst = frozenset({id} if worst else ())
    here.serve()
    here.process.run_next(kind="failed", error={"type": "Oops"})
    for _ in range(60):
        here.loop.advance(0.5)
        here.process.send_heartbeat()
        here.engine.maintain("running")
    assert here.state(id) == state
    assert not here.process.permits
    assert len(here.engine.leases) == worst
    assert len([event for event in here.events if isinstance(event, JobsStale)]) == worst
    store.worst = frozenset()
    for _ in range(10):
        here.engine.maintain("running")
    assert here.state(id) == "failed"
    assert len(here.engine.leases) == 0


class WithoutReleases(WrappedStore):
    """Takes no release of a job, as with a trigger of another program."""

    refuses = True

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        if self.refuses and any(outcome.kind is Kind.RELEASED for outcome in outcomes):
            raise RowRefused("no job is released")
        return self.inner.settle(outcomes)


def test_a_released_job_does_not_fail_because_the_store_refuses_its_release() -> None:
    here = Virtual(store=(store := WithoutReleases()))
    ids = here.enqueue("not served", "not served")
    here.serve()
    pass_seconds(here, 30)
    assert [here.state(id) for id in ids] == ["in_flight"] * 2
    assert here.engine.committer.unsettled == 2
    assert reported(here, JobsStale) == ids, "once"
    store.refuses = False
    pass_seconds(here, 5)
    assert [here.state(id) for id in ids] == ["scheduled"] * 2
    assert nothing_is_kept(here)


class WithLocks(WrappedStore):
    """Another client of the database has locked the rows of the jobs in `locked`."""

    locked: frozenset[int] = frozenset()
    refuses: frozenset[int] = frozenset()
    worst: frozenset[int] = frozenset()

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        if locked := self.locked.intersection(outcome.lease.id for outcome in outcomes):
            raise RowsLocked("locked", locked)
        ids = {outcome.lease.id for outcome in outcomes if outcome.failure is None}
        if ids & self.refuses or self.worst.intersection(outcome.lease.id for outcome in outcomes):
            raise RowRefused("bad row")
        return self.inner.settle(outcomes)


def reported(here: Virtual, kind: type) -> list[int]:
    return [lease.id for event in here.events if isinstance(event, kind) for lease in event.leases]


def finished(*locked: int, engine_limits: Limits = DEFAULT_LIMITS) -> tuple[Virtual, WithLocks, list[int]]:
    """Five jobs have ended, the first two settled alone and the others together. The rows at these positions are locked."""
    here = Virtual(workers=5, store=(store := WithLocks()), engine_limits=engine_limits)
    ids = here.enqueue(*["work"] * 5)
    store.locked = frozenset(ids[place] for place in locked)
    here.serve()
    here.writer.eager = False
    for worker in list(here.pool.workers.values()):
        process = here.backend.forked[worker.number - 1]
        process.start_next()
        process.finish()
        process.unread = [reply._replace(result="x" * 1000) for reply in process.unread]
        process.drain()
    here.writer.eager = True
    here.writer.step()
    return here, store, ids


async def finish_within(here: Virtual, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await here.engine.committer.finish()


def pass_seconds(here: Virtual, seconds: int) -> None:
    for _ in range(seconds):
        here.loop.advance(1.0)
        for process in here.backend.forked:
            process.send_heartbeat()
        here.engine.maintain("running")


def nothing_is_kept(here: Virtual) -> bool:
    its = here.engine.committer
    return (its.unsettled, its._bytes, len(here.engine.leases)) == (0, 0, 0)


def test_outcomes_whose_rows_are_locked_are_kept_reported_once_and_settled_when_unlocked() -> None:
    here, store, ids = finished(1, 3)
    assert [here.state(id) == "succeeded" for id in ids] == [True, False, True, False, True]
    assert here.engine.committer.unsettled == 2 and not here.engine.quiet
    assert reported(here, JobsLocked) == []
    pass_seconds(here, 30)
    assert reported(here, JobsLocked) == [ids[1], ids[3]]
    assert here.engine.committer._bytes == 2000
    store.locked = frozenset(ids[3:4])
    pass_seconds(here, 1)
    assert [here.state(id) == "succeeded" for id in ids] == [True, True, True, False, True]
    store.locked = frozenset()
    pass_seconds(here, 1)
    assert sorted(here.settled()) == ids
    assert reported(here, JobsStale) == [] and len(reported(here, JobsLocked)) == 2
    assert nothing_is_kept(here)


def test_a_kept_outcome_whose_job_is_cancelled_meanwhile_is_forgotten() -> None:
    here, store, ids = finished(3)
    here.store.cancel(ids[3:4])
    pass_seconds(here, 3)
    assert reported(here, JobsStale) == []
    assert nothing_is_kept(here)
    store.locked = frozenset()
    pass_seconds(here, 1)
    assert here.state(ids[3]) == "cancelled"


def test_the_next_job_starts_once_large_kept_outcomes_are_gone() -> None:
    here, _, _ = finished(3, engine_limits=Limits(unsettled_bytes=1000))
    (next_id,) = here.enqueue("work")
    here.notify()
    assert here.engine.committer.overfull and here.state(next_id) == "ready"
    here.engine.leases.drop([outcome.lease for outcome in here.engine.committer._locked.values()])
    here.engine.committer.retry_locked()
    assert here.state(next_id) == "in_flight"


def test_a_kept_outcome_that_is_refused_when_unlocked_fails_its_job_alone() -> None:
    here, store, ids = finished(1, 2, 3)
    store.refuses, store.worst = frozenset(ids[3:4]), frozenset(ids[2:3])
    store.locked = frozenset()
    pass_seconds(here, 2)
    assert [here.state(id) for id in ids] == ["succeeded", "succeeded", "in_flight", "failed", "succeeded"]
    assert here.engine.committer.unsettled == 1
    store.worst = frozenset()
    pass_seconds(here, 5)
    assert here.state(ids[2]) == "failed"
    assert nothing_is_kept(here)


def test_a_locked_outcome_is_tried_by_one_call_at_a_time_while_the_store_is_unavailable() -> None:
    here, _, _ = finished(3)
    here.writer.unavailable = True
    pass_seconds(here, 1)
    waiting = len(here.writer.waiting)
    for _ in range(10):
        here.engine.committer.retry_locked()
    assert len(here.writer.waiting) == waiting


class Changed(WrappedStore):
    """Another program has put jobs into it that are not counted, until it is repaired."""

    hidden = True
    repairs = 0

    def look(self, served: frozenset[str] | None, limit: int, stay: bool = False) -> Look:
        look = self.inner.look(served, limit, stay)
        return look._replace(waiting={}) if self.hidden else look

    def repair(self) -> str:
        self.repairs += 1
        was_hidden, self.hidden = self.hidden, False
        return "the counts of jobs in default" if was_hidden else ""


def test_a_store_that_others_have_changed_is_repaired_while_a_worker_is_idle_and_its_jobs_run() -> None:
    store = Changed()
    here = Virtual(store=store)
    (id,) = here.enqueue("work")
    here.serve()
    pass_seconds(here, 9)
    assert (here.state(id), store.repairs) == ("ready", 0)
    pass_seconds(here, 1)
    assert (here.state(id), store.repairs) == ("in_flight", 1)
    pass_seconds(here, 20)
    assert store.repairs == 1, "every worker has a job"
    assert [event.wrong for event in here.events if isinstance(event, StoreRepaired)] == [
        "the counts of jobs in default"
    ]


def test_a_lock_that_stays_is_waited_for_a_few_times_at_the_end_and_its_job_is_left_to_recovery() -> None:
    here, store, ids = finished(3)
    loop = JumpingLoop()
    began = loop.time()
    loop.run_until_complete(finish_within(here, 60.0))
    assert loop.time() - began == pytest.approx(TRIES_AT_THE_END * SECONDS_BETWEEN_TRIES)
    assert here.engine.committer.unsettled == 1
    store.locked = frozenset()
    loop.run_until_complete(finish_within(here, 60.0))
    assert here.state(ids[3]) == "succeeded"
    loop.close()


def test_the_end_waits_for_a_batch_that_is_being_written() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.serve()
    here.writer.eager = False
    here.process.run_next()
    loop = JumpingLoop()
    loop.call_later(1.0, here.writer.step)
    loop.run_until_complete(finish_within(here, 60.0))
    assert here.state(id) == "succeeded"
    loop.close()
