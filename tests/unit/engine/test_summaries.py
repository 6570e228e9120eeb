"""The meaning of settled outcomes for the rest of the engine."""

from __future__ import annotations

from supervisor.engine.committer import Summary, summary
from supervisor.engine.unknown_handlers import HEAD_START
from supervisor.jobs import Cause, Failure, JobState, Kind, Outcome
from tests.unit.fakes import make_lease

QUEUE = frozenset({"default"})


def retried(delay: float) -> Outcome:
    failure = Failure(Cause.EXCEPTION)
    return Outcome(
        make_lease(1), Kind.FAILED, failure=failure, state=JobState.SCHEDULED, delay=delay, counted=True
    )  # fmt: skip


def released(delay: float) -> Outcome:
    state = JobState.SCHEDULED if delay else JobState.READY
    return Outcome(make_lease(2), Kind.RELEASED, state=state, delay=delay)


def test_the_next_job_is_due_after_the_least_delay_less_the_age_of_the_outcomes() -> None:
    assert summary([retried(9.0), retried(5.0), retried(7.0)]) == Summary(due_in=5.0)
    assert summary([retried(5.0)], age=2.0) == Summary(due_in=3.0)


def test_a_job_that_is_released_for_later_is_left_to_other_supervisors_first() -> None:
    assert summary([released(5.0)]) == Summary(ready=QUEUE, due_in=5.0 + HEAD_START)
    assert summary([released(5.0), retried(5.2)]) == Summary(ready=QUEUE, due_in=5.2)
    assert summary([released(0.0)]) == Summary(ready=QUEUE)


def test_ended_jobs_are_due_never_again() -> None:
    succeeded = Outcome(make_lease(3), Kind.SUCCEEDED, state=JobState.SUCCEEDED)
    dead = retried(0.0)._replace(state=JobState.FAILED, dead_letter=True)
    assert summary([succeeded]) == Summary()
    assert summary([succeeded, dead]) == Summary(dead_letters=True)
