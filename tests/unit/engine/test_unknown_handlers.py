"""For how long the handler of a job has been missing."""

from __future__ import annotations

from supervisor.engine.committer import Summary, summary
from supervisor.engine.unknown_handlers import HEAD_START, MissingHandlers
from supervisor.jobs import JobState, Kind, Outcome
from tests.unit.fakes import make_lease


def meet(
    missing: MissingHandlers, *times: float, id: int = 1, handler: str = "mail", retries: int = 0, grace: float = 100
) -> list[float]:
    lease = make_lease(id, handler, retries)
    return [missing.missing_for(lease, now, grace=grace, again_in=30) for now in times]


def test_a_handler_is_missing_since_its_job_was_first_claimed() -> None:
    assert meet(MissingHandlers(100), 5.0, 35.0, 65.0, 110.0) == [0, 30, 60, 105]


def test_a_later_job_waits_as_long_as_those_before_it() -> None:
    missing = MissingHandlers(100)
    meet(missing, 0.0, 99.0)
    assert meet(missing, 99.0, 130.0, id=2) == [0, 31]


def test_a_grace_shorter_than_the_delay_of_a_release_ends_at_the_second_claim() -> None:
    assert meet(MissingHandlers(100), 0.0, 30.5, grace=5) == [0, 30.5]


def test_a_job_that_was_not_claimed_for_long_counts_anew() -> None:
    assert meet(MissingHandlers(100), 0.0, 260.0) == [0, 0]


def test_a_job_that_ran_elsewhere_meanwhile_counts_anew() -> None:
    missing = MissingHandlers(100)
    meet(missing, 0.0, 50.0)
    assert meet(missing, 110.0, 150.0, retries=1) == [0, 40]


def test_a_job_whose_grace_is_over_has_all_of_it_again_if_it_is_redriven() -> None:
    assert meet(MissingHandlers(100), 0.0, 100.0, 110.0) == [0, 100, 0]


def test_a_handler_that_is_served_again_is_forgotten() -> None:
    missing = MissingHandlers(100)
    meet(missing, 0.0)
    meet(missing, 0.0, id=2, handler="report")
    missing.found({"mail"})
    assert meet(missing, 50.0) == [0]
    assert meet(missing, 50.0, id=2, handler="report") == [50]


def test_jobs_beyond_those_that_are_remembered_count_later() -> None:
    missing = MissingHandlers(max_jobs=2)
    for id in (1, 2, 3):
        meet(missing, 0.0, id=id)
    assert [meet(missing, 100.0, id=id) for id in (3, 1, 2, 3)] == [[0], [100], [100], [0]]
    assert meet(missing, 200.0, id=3) == [100]


def test_jobs_that_were_never_claimed_again_make_room() -> None:
    missing = MissingHandlers(max_jobs=2)
    meet(missing, 0.0, id=1)
    meet(missing, 0.0, id=2)
    assert meet(missing, 300.0, 330.0, id=3) == [0, 30]


def test_others_are_notified_of_a_job_with_an_unknown_handler_and_have_a_head_start() -> None:
    released = Outcome(make_lease(1), Kind.RELEASED, state=JobState.SCHEDULED, delay=5.0)
    assert summary([released]) == Summary(ready=frozenset({"default"}), due_in=5.0 + HEAD_START)
    assert summary([released], age=2.0) == Summary(ready=frozenset({"default"}), due_in=3.0 + HEAD_START)
