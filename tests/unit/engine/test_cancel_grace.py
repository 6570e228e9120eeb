"""A cancelled job that runs on in its grace has no lease: it keeps no other job from running, and never runs twice at once."""

from __future__ import annotations

from typing import Any

from supervisor.events import JobCancelled, JobsStale, WorkerExited
from tests.unit.virtual import Virtual

GRACE = 5.0


def running() -> tuple[Virtual, Any, int]:
    """Return a supervisor with a job that was cancelled and runs on, the job's worker, and its id."""
    here = Virtual()
    here.engine.config.settings = here.settings.replace(workers=here.settings.workers.replace(cancel_grace=GRACE))
    (id,) = here.enqueue("work")
    here.serve()
    worker = here.process
    worker.start_next()
    here.store.cancel([id])
    here.engine.maintain("running")
    return here, worker, id


def test_a_cancelled_job_is_killed_after_its_grace() -> None:
    here, worker, id = running()
    assert (worker.killed, worker.retired) == ([], True)
    assert [event.lease.id for event in here.events if isinstance(event, JobCancelled)] == [id]
    here.loop.advance(GRACE - 0.1)
    assert worker.killed == []
    here.loop.advance(0.2)
    assert worker.killed == [False]


def test_the_outcome_of_a_cancelled_job_changes_nothing() -> None:
    here, worker, id = running()
    worker.finish()
    here.loop.advance(GRACE * 2)
    assert worker.killed == []
    assert here.state(id) == "cancelled"
    assert not [event for event in here.events if isinstance(event, JobsStale | WorkerExited)]


def test_a_job_that_is_claimed_again_in_its_grace_does_not_run_twice_at_once() -> None:
    here, worker, id = running()
    here.store.retry([id])
    here.notify()
    here.loop.advance(1.0)
    (other,) = [each for each in here.backend.forked if each is not worker]
    other.come_up()
    here.notify()
    assert here.state(id) == "in_flight"
    assert worker.killed == [False]
