"""Times as people write them, for tests of schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
BERLIN = "Europe/Berlin"
LORD_HOWE = "Australia/Lord_Howe"
"""Its clocks change by half an hour."""


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    """The microseconds of a local time; `fold` is 1 for the second of two equal ones."""
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def local(time: int | None, zone: str = "UTC") -> str:
    """The local time, with its offset."""
    assert time is not None
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)
    return moment.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes")
