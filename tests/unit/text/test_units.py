from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.text.units import MAX_SECONDS, counted, format_duration, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("0.5s", 0.5), ("30s", 30.0), ("5m", 300.0), ("2h", 7200.0), ("1d", 86_400.0), ("1.5h", 5400.0)],
)
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_a_counted_noun_agrees_with_its_number_and_its_verb() -> None:
    assert [counted(n, "job") for n in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
    assert counted(1_234_567, "job", "wait") == "1,234,567 jobs wait"
    assert [counted(n, "job", "wait") for n in (0, 1, 2)] == ["0 jobs wait", "1 job waits", "2 jobs wait"]
    assert [counted(1, "job", does) for does in ("are", "were", "have")] == ["1 job is", "1 job was", "1 job has"]


def test_a_number_is_seconds_in_python() -> None:
    assert parse_duration(90) == 90.0
    assert parse_duration(0.25) == 0.25


@pytest.mark.parametrize(
    "value",
    ["", "30", "30 sec", "s", "-1s", "1:30", "1e3s", "0s", "0ms", "nan", "inf", "1m30s", "１s",
     "9" * 400 + "d", 0, -1, math.nan, math.inf, 10**400, True, None, [], b"1s"],
)  # fmt: skip
def test_text_that_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 500ms"):
        parse_duration(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["36501d", "40000d", 36_500 * 86_400 + 1])
def test_a_duration_that_is_too_long_is_told_so(value: object) -> None:
    with pytest.raises(ValueError, match="expected a duration of at most 36500d, got"):
        parse_duration(value)  # type: ignore[arg-type]


def test_a_duration_may_be_zero_on_demand() -> None:
    assert parse_duration("0s", zero=True) == 0
    assert parse_duration(0, zero=True) == 0
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(-0.001, zero=True)


@pytest.mark.parametrize(
    ("text", "size"), [("1B", 1), ("64KB", 64_000), ("512MB", 512_000_000), ("0.5GB", 500_000_000)]
)
def test_a_size_is_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("value", ["0MB", "1", "1.5B", "1MiB", "-1MB", "1 M", 0, 1.5, True, math.inf, "9" * 21 + "B"])
def test_text_that_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected a size such as 64KB"):
        parse_size(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0004, "0ms"), (0.45, "450ms"), (0.9999, "1s"), (1.0, "1s"), (1.54, "1.5s"), (9.96, "10s"), (59.6, "1m"), (200, "3m 20s"),
     (7500, "2h 5m"), (3600, "1h"), (86_400 * 3 + 4 * 3600, "3d 4h")],
)  # fmt: skip
def test_a_duration_is_written_as_people_read_it(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@settings(max_examples=50, deadline=None, database=None)
@given(st.text())
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        assert 0 < parse_duration(text) <= MAX_SECONDS
    except ValueError as error:
        assert repr(text) in str(error)
