"""The fire times of cron expressions and intervals, around changes of the clocks too."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.schedules.fire_times import Cron, Due, Every, checked_cron, shown_timing, zone_of
from tests.unit.schedules.moments import BERLIN, DAY, LORD_HOWE, MINUTE, SECOND, at, local


def times(cron: Cron, start: str, number: int) -> list[str]:
    found, moment = [], at(start, cron.timezone)
    for _ in range(number):
        moment = cron.after(moment) or 0
        found.append(local(moment, cron.timezone))
    return found


# --- when the clocks change


def test_a_time_that_is_skipped_fires_at_the_first_minute_after_the_gap() -> None:
    assert times(Cron("30 2 * * *", BERLIN), "2026-03-28T12:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:30+02:00",
    ]


def test_a_time_that_comes_twice_fires_at_the_first_one() -> None:
    assert times(Cron("30 2 * * *", BERLIN), "2026-10-24T12:00", 2) == [
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ]


def test_half_an_hour_that_is_skipped_or_comes_twice() -> None:
    assert times(Cron("10 2 * * *", LORD_HOWE), "2026-10-03T12:00", 2) == [
        "2026-10-04T02:30+11:00",
        "2026-10-05T02:10+11:00",
    ]
    assert times(Cron("45 1 * * *", LORD_HOWE), "2026-04-04T12:00", 2) == [
        "2026-04-05T01:45+11:00",
        "2026-04-06T01:45+10:30",
    ]


def test_an_hourly_schedule_fires_by_elapsed_time() -> None:
    hourly = Cron("0 * * * *", BERLIN)
    assert times(hourly, "2026-10-25T01:30", 3) == [
        "2026-10-25T02:00+02:00",
        "2026-10-25T02:00+01:00",
        "2026-10-25T03:00+01:00",
    ]
    assert times(hourly, "2026-03-29T01:30", 2) == ["2026-03-29T03:00+02:00", "2026-03-29T04:00+02:00"]


def test_two_skipped_times_fire_once_together() -> None:
    assert times(Cron("0,30 2 * * *", BERLIN), "2026-03-28T12:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:00+02:00",
    ]


def test_in_the_second_of_two_equal_hours_a_time_of_the_first_is_not_given_again() -> None:
    daily = Cron("30 2 * * *", BERLIN)
    between = at("2026-10-25T02:10", BERLIN, fold=1)
    assert local(daily.after(between), BERLIN) == "2026-10-26T02:30+01:00"
    due = daily.due(at("2026-10-24T12:00", BERLIN), between, 10)
    assert [local(time, BERLIN) for time in due.times] == ["2026-10-25T02:30+02:00"]
    assert daily.due(due.times[-1], between, 10).times == []


@settings(max_examples=60, deadline=None)
@given(
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
    zone=st.sampled_from(
        [BERLIN, LORD_HOWE, "America/Santiago", "Pacific/Chatham", "Africa/Cairo", "Antarctica/Troll"]
    ),
)
def test_a_daily_schedule_fires_once_on_each_day_of_a_year(hour: int, minute: int, zone: str) -> None:
    cron, moment, days = Cron(f"{minute} {hour} * * *", zone), at("2025-12-31T23:59", zone), []
    while (moment := cron.after(moment) or 0) < at("2027-01-01T00:00", zone):
        days.append(local(moment, zone)[:10])
    assert len(days) == len(set(days)) == 365


# --- other times


def test_a_leap_day_comes_every_four_years_and_not_in_2100() -> None:
    assert times(Cron("0 0 29 2 *"), "2026-01-01T00:00", 2) == ["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"]
    assert times(Cron("0 0 29 2 *"), "2096-03-01T00:00", 1) == ["2104-02-29T00:00+00:00"]


def test_days_of_the_month_and_of_the_week_are_combined_as_in_cron() -> None:
    either = times(Cron("0 0 13 * 5"), "2026-02-01T00:00", 3)
    assert either == ["2026-02-06T00:00+00:00", "2026-02-13T00:00+00:00", "2026-02-20T00:00+00:00"]
    assert times(Cron("0 0 */13 * 5"), "2026-02-01T00:00", 1) == ["2026-02-27T00:00+00:00"]


def test_a_fire_time_is_after_the_moment_even_by_a_microsecond() -> None:
    minute = at("2026-01-01T00:01")
    assert Cron("* * * * *").after(minute - 1) == minute
    assert Cron("* * * * *").after(minute) == minute + MINUTE


def test_intervals_follow_from_the_last_fire_time() -> None:
    every = Every(30 * SECOND)
    assert every.after(7) == 30 * SECOND + 7
    assert every.due(7, 7 + 30 * SECOND - 1, 10) == Due([])
    assert every.due(7, 7 + 30 * SECOND, 10) == Due([7 + 30 * SECOND])
    assert every.due(7, 7 + 100 * SECOND, 2) == Due([7 + 60 * SECOND, 7 + 90 * SECOND], more=True)
    assert every.due(7, 7 + 60 * SECOND, 2) == Due([7 + 30 * SECOND, 7 + 60 * SECOND])
    assert every.due(7, 0, 2) == Due([]), "the clock is behind"


@pytest.mark.parametrize(
    ("expression", "days"),
    [("*/7 * * * *", 0.1), ("*/7 * * * *", 40), ("15 3 * * *", 90), ("15 3 * * *", 2000), ("0 0 1 1,6 *", 20_000)],
)
def test_the_last_due_times_are_found_however_long_ago_the_first_was(expression: str, days: float) -> None:
    start, cron = at("1995-10-01T12:00"), Cron(expression, BERLIN)
    now, every = start + int(days * DAY), []
    while (moment := cron.after(every[-1] if every else start) or now + 1) <= now:
        every.append(moment)
    due = cron.due(start, now, 100)
    assert due.times == every[-100:]
    assert due.more == (len(every) > 100)


def test_a_cron_expression_that_fires_often_is_not_walked_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    walk = Cron._times
    monkeypatch.setattr(Cron, "_times", lambda self, after: (looked.append(time) or time for time in walk(self, after)))
    assert len(Cron("* * * * *").due(0, at("2026-01-01T00:00"), 100).times) == 100
    assert len(looked) < 1000


def test_no_time_is_behind_the_end_of_the_calendar() -> None:
    assert Cron("0 0 1 1 *").after(at("9999-06-01T00:00")) is None
    assert Cron("0 0 1 1 *").after(36_500 * 365 * DAY) is None


def test_fire_times_of_a_minute_in_a_fixed_hour_are_those_of_a_search_in_minutes() -> None:
    """A simple search, minute by minute, finds the same times away from changes of the clocks."""
    for expression, matches in (
        ("5,35 8-17/3 * * 1-5", lambda it: it.minute in (5, 35) and it.hour in (8, 11, 14, 17) and it.isoweekday() < 6),
        ("*/20 22 10-12 * *", lambda it: it.minute % 20 == 0 and it.hour == 22 and it.day in (10, 11, 12)),
    ):
        start, end = at("2026-07-01T00:00", BERLIN), at("2026-07-20T00:00", BERLIN)
        expected = [
            time
            for time in range(start, end, MINUTE)
            if matches(datetime.fromtimestamp(time / SECOND, ZoneInfo(BERLIN)))
        ]
        found = Cron(expression, BERLIN).due(start - 1, end - 1, 1000).times
        assert found == expected and len(found) > 5
        assert all(later - earlier >= 20 * MINUTE for earlier, later in pairwise(found))


# --- what a person writes


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("0 25 * * *", "its hour is wrong"),
        ("60 * * * *", "its minute is wrong"),
        ("0 0 0 * *", "its day of month is wrong"),
        ("0 0 31 2 *", "its day of month is wrong"),
        ("0 0 * 13 *", "its month is wrong"),
        ("0 0 * * 9", "its day of week is wrong"),
        ("0 0 * *", "a cron expression of five fields"),
        ("0 0 0 * * *", "a cron expression of five fields"),
        ("@daily", "a cron expression of five fields"),
        ("1#1/2 * * * *", "its minute is wrong"),
        ("0 0 */20 * 1L", "fires at some time"),
        ("", "a cron expression of five fields"),
    ],
)
def test_a_wrong_expression_is_refused_with_what_is_wrong(expression: str, wrong: str) -> None:
    with pytest.raises(ValueError, match="expected a cron expression") as refused:
        checked_cron(expression)
    assert wrong in str(refused.value)


def test_an_expression_is_kept_with_single_spaces() -> None:
    assert checked_cron(" 0  3 * *\tmon-fri ") == "0 3 * * mon-fri"
    assert Cron("0 3 * * *", BERLIN).text == "cron 0 3 * * * Europe/Berlin"
    assert (Every(1_500_000).text, Every(30 * DAY + 1).text) == ("every 1.5s", "every 2592000.000001s")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("every 3600s", "every 1h"),
        ("every 5400s", "every 1h 30m"),
        ("every 0.45s", "every 450ms"),
        ("every 1.25s", "every 1.25s"),
        ("every 90061s", "every 90061s"),
        ("every 2592000.000001s", "every 2592000.000001s"),
        ("every 9999999999s", "every 9999999999s"),
        ("cron 0 3 * * * Europe/Berlin", "cron 0 3 * * * Europe/Berlin"),
        ("", ""),
    ],
)
def test_an_interval_is_shown_in_the_units_of_the_config_if_that_is_exact(text: str, shown: str) -> None:
    assert shown_timing(text) == shown


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("0123459*/,-#?LWMONTUE", min_size=1, max_size=7), min_size=5, max_size=5))
def test_any_text_is_a_cron_expression_or_refused(fields: list[str]) -> None:
    try:
        cron = Cron(checked_cron(" ".join(fields)))
    except ValueError:
        return
    assert (cron.after(0) or 1) > 0


@pytest.mark.parametrize("name", ["Europe/Berln", "Europe", "../etc/passwd", "/etc/localtime", "", "a\x00b"])
def test_a_time_zone_that_the_system_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        zone_of(name)
