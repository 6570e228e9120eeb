"""For how long a job has missed its handler."""

from __future__ import annotations

from supervisor.engine.unknown_handlers import MissingHandlers
from tests.unit.fakes import make_lease


def meet(
    missing: MissingHandlers, *times: float, id: int = 1, handler: str = "mail", retries: int = 0, grace: float = 100
) -> list[float]:
    lease = make_lease(id, handler, retries)
    return [missing.missing_for(lease, now, grace=grace, again_in=30) for now in times]


def test_an_absence_is_counted_from_when_the_job_was_first_met() -> None:
    assert meet(MissingHandlers(100), 5.0, 35.0, 65.0, 110.0) == [0, 30, 60, 105]


def test_a_job_that_comes_late_waits_as_long_as_those_before_it() -> None:
    missing = MissingHandlers(100)
    meet(missing, 0.0, 99.0)
    assert meet(missing, 99.0, 130.0, id=2) == [0, 31]


def test_a_grace_shorter_than_the_time_between_two_looks_ends_all_the_same() -> None:
    assert meet(MissingHandlers(100), 0.0, 30.5, grace=5) == [0, 30.5]


def test_a_job_not_met_in_a_long_time_is_a_new_absence() -> None:
    assert meet(MissingHandlers(100), 0.0, 260.0) == [0, 0]


def test_a_job_that_ran_elsewhere_meanwhile_is_a_new_absence() -> None:
    missing = MissingHandlers(100)
    meet(missing, 0.0, 50.0)
    assert meet(missing, 110.0, 150.0, retries=1) == [0, 40]


def test_a_job_whose_wait_is_over_has_all_of_it_again_if_it_comes_again() -> None:
    assert meet(MissingHandlers(100), 0.0, 100.0, 110.0) == [0, 100, 0]


def test_a_handler_that_is_served_again_is_forgotten() -> None:
    missing = MissingHandlers(100)
    meet(missing, 0.0)
    meet(missing, 0.0, id=2, handler="report")
    missing.found({"mail"})
    assert meet(missing, 50.0) == [0]
    assert meet(missing, 50.0, id=2, handler="report") == [50]


def test_of_more_jobs_than_are_remembered_the_others_have_their_turn_later() -> None:
    missing = MissingHandlers(max_jobs=2)
    for id in (1, 2, 3):
        meet(missing, 0.0, id=id)
    assert [meet(missing, 100.0, id=id) for id in (3, 1, 2, 3)] == [[0], [100], [100], [0]]
    assert meet(missing, 200.0, id=3) == [100]


def test_jobs_that_never_came_again_make_room() -> None:
    missing = MissingHandlers(max_jobs=2)
    meet(missing, 0.0, id=1)
    meet(missing, 0.0, id=2)
    assert meet(missing, 300.0, 330.0, id=3) == [0, 30]
