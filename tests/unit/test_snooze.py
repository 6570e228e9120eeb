"""The exception Snooze: its arguments are checked where it is raised."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor import Snooze


def test_its_delay_is_seconds_or_text() -> None:
    assert (Snooze("1.5m").delay, Snooze(2).delay, str(Snooze("90s"))) == (90.0, 2.0, "for 1m 30s")


def test_without_a_limit_it_has_that_of_the_documentation() -> None:
    until = datetime(2030, 1, 1, tzinfo=UTC)
    assert (Snooze(1).max_snoozes, Snooze(1, until=until).max_snoozes) == (1000, None)
    assert (Snooze(1, max_snoozes=3, until=until).max_snoozes, Snooze(1, max_snoozes=0).max_snoozes) == (3, 0)


@pytest.mark.parametrize("delay", ["soon", 0, "0s", -1, float("nan"), None, True, "36501d"])
def test_a_wrong_delay_is_refused(delay: Any) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        Snooze(delay)


@pytest.mark.parametrize("most", [-1, 1.5, "3", True, 1 << 31])
def test_a_wrong_number_of_snoozes_is_refused(most: Any) -> None:
    with pytest.raises(ValueError, match="max_snoozes: expected a whole number"):
        Snooze(1, max_snoozes=most)


@pytest.mark.parametrize("until", ["2030-01-01", 5, datetime(2030, 1, 1)])
def test_a_time_without_a_zone_is_refused(until: Any) -> None:
    with pytest.raises(TypeError, match="until: expected a datetime with a time zone"):
        Snooze(1, until=until)
