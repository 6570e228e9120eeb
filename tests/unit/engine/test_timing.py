"""Slow claims and commits delay neither the watchdog nor due jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.events import JobsSettled, JobStarted
from supervisor.workers.slot import WorkerSlot
from tests.unit.fakes import FakeWorker
from tests.unit.virtual import Virtual
from tests.unit.wrapped_store import WrappedStore


def test_a_short_timeout_of_a_job_claimed_late_fires_in_time() -> None:
    here, process = running(timeout=0.1)
    here.loop.advance(0.099)
    assert process.killed == []
    here.loop.advance(0.002)
    assert process.killed == [True]


def test_the_start_of_a_job_claimed_late_is_reported_soon() -> None:
    here, process = running()
    here.loop.advance(0.021)
    assert [event.pid for event in here.events if isinstance(event, JobStarted)] == [process.pid]


def running(timeout: float | None = None) -> tuple[Virtual, FakeWorker]:
    """Return a supervisor that was idle, and its worker with a job that a slow claim has brought."""
    here = Virtual()
    here.serve()
    here.loop.advance(0.9)
    here.writer.eager = False
    here.enqueue("work", timeout=timeout)
    here.notify()
    here.loop.advance(0.3)
    here.process.send_heartbeat()
    here.writer.step()
    here.process.start_next()
    return here, here.process


COMMIT = 0.1


class SlowDisk(WrappedStore):
    here: Virtual
    _depth = 0

    @contextmanager
    def transaction(self, *, single: bool = False, brief: bool = False) -> Iterator[None]:
        self._depth += 1
        try:
            with self.inner.transaction(single=single, brief=brief):
                yield
        finally:
            self._depth -= 1
        if not self._depth:
            self.here.loop.stand_still(COMMIT)


@pytest.fixture
def slow() -> Virtual:
    here = Virtual(workers=2)
    here.writer.store = store = SlowDisk()
    store.inner, store.here = here.store, here
    here.serve()
    return here


def test_the_delay_of_a_retry_counts_from_when_its_outcome_was_written_not_from_the_end_of_the_commit(
    slow: Virtual,
) -> None:
    (id,) = slow.enqueue("work")
    slow.notify()
    slow.process.start_next()
    slow.process.finish("failed", error={"type": "Oops"})
    slow.process.drain()
    written = slow.loop.now - COMMIT
    (settled,) = [event for event in slow.events if isinstance(event, JobsSettled)]
    assert settled.age == pytest.approx(COMMIT)
    assert slow.engine.fetcher.timers.next_due == pytest.approx(written + settled.outcomes[0].delay)
    assert slow.state(id) == "scheduled"


def test_the_delay_of_a_scheduled_job_counts_from_when_it_was_looked_up(slow: Virtual) -> None:
    slow.enqueue("work", delay=10.0)
    looked = slow.loop.now
    slow.notify()
    assert slow.loop.now == looked + COMMIT
    assert slow.engine.fetcher.timers.next_due == pytest.approx(looked + 10.0)


def test_a_retry_that_came_due_during_its_commit_is_claimed_though_another_is_due_later(slow: Virtual) -> None:
    soon, _later = slow.enqueue("work", "work")
    slow.notify()
    slow.writer.eager = False
    for worker, after in zip(list(slow.pool.workers.values()), (COMMIT / 2, 20.0), strict=True):
        assert isinstance(worker.process, FakeWorker)
        worker.process.start_next()
        worker.process.finish("retry", error={"type": "Retry", "after": after})
        worker.process.drain()
    slow.writer.step()
    slow.writer.eager = True
    slow.loop.advance(0.0)
    assert slow.state(soon) == "in_flight"


def test_jobs_reclaimed_from_behind_a_long_one_go_to_an_idle_worker() -> None:
    here = Virtual(workers=2)
    here.pool.others.times.learn("work", [0.0001])
    here.serve()
    here.enqueue(*["work"] * 8)
    here.notify()
    busy, idle = here.pool.workers.values()
    busy.process.start_next()  # type: ignore[attr-defined]
    while idle.sent:
        idle.process.run_next()  # type: ignore[attr-defined]
    freed = [lease.id for lease in busy.sent][1:]
    here.loop.advance(WorkerSlot.blocked_after + 0.001)
    assert [lease.id for lease in idle.sent] == freed[:1]
