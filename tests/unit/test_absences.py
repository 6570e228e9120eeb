"""For how long a handler has been missed."""

from __future__ import annotations

from supervisor.engine.absences import Absences


def test_an_absence_is_counted_from_the_first_job_that_met_it() -> None:
    absences = Absences()
    seen = [absences.missed_for("mail", now, grace=100, again_in=30) for now in (5.0, 35.0, 65.0, 110.0)]
    assert seen == [0, 30, 60, 105]


def test_a_grace_shorter_than_the_time_between_two_looks_ends_all_the_same() -> None:
    absences = Absences()
    assert [absences.missed_for("mail", now, grace=5, again_in=30) for now in (0.0, 30.5)] == [0, 30.5]


def test_what_nobody_asked_for_in_a_long_time_is_a_new_absence() -> None:
    absences = Absences()
    assert [absences.missed_for("mail", now, grace=100, again_in=30) for now in (0.0, 160.0)] == [0, 0]


def test_a_handler_that_is_served_again_is_forgotten() -> None:
    absences = Absences()
    absences.missed_for("mail", 0.0, grace=100, again_in=30)
    absences.missed_for("report", 0.0, grace=100, again_in=30)
    absences.end({"mail"})
    assert absences.missed_for("mail", 50.0, grace=100, again_in=30) == 0
    assert absences.missed_for("report", 50.0, grace=100, again_in=30) == 50
