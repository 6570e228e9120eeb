"""Durations and sizes as people write them, and times and numbers as they are shown."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

MAX_SECONDS = 36_500 * 86_400.0
TOO_LONG = "expected a duration of at most 36500d"
DURATION = "a duration such as 500ms, 30s, 5m, 2h or 1d"
MOMENT = "a time with a zone, such as 2026-11-30T10:00:00Z, or how long ago, such as 15m, 2h or 1d"
SIZE = "a size such as 64KB, 1MB or 2GB"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_OF_ONE = {"are": "is", "were": "was", "have": "has"}
_BYTES = {"B": 1, "KB": 10**3, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)")


class TooLong(ValueError):
    """A duration above the longest one."""


def parse_duration(value: str | float, *, zero: bool = False) -> float:
    """Return the seconds of text such as "500ms", or of a number of seconds.

    Raises ValueError unless the duration is at most a century and above zero (or zero, if `zero` is true); it is TooLong if only that is
    wrong.
    """
    seconds = _amount(value, _SECONDS) if isinstance(value, str) else _number(value)
    if seconds is not None and seconds > MAX_SECONDS:
        raise TooLong(f"{TOO_LONG}, got {value!r:.80}")
    if seconds is None or not (0 <= seconds <= MAX_SECONDS) or (seconds == 0 and not zero):
        raise ValueError(f"expected {DURATION}, got {value!r}")
    return seconds


def parse_moment(text: str, now: float) -> int:
    """Return microseconds since the epoch of a time with a zone, or of how long before `now` (seconds) it was, such as 2h. Raises
    ValueError."""
    try:
        if text[:1].isdigit() and text[-1:] in "smhd":
            return round((now - parse_duration(text)) * 1_000_000)
        moment = datetime.fromisoformat(text.upper().replace(" ", "+"))
        if moment.tzinfo is None:
            raise ValueError
        return microseconds_of(moment)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise ValueError(f"expected {MOMENT}") from None


def microseconds_of(moment: datetime) -> int:
    """Return microseconds since the epoch of an aware datetime."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def microseconds_of_iso(text: str) -> int:
    """Return microseconds since the epoch of what `iso` has written."""
    return microseconds_of(datetime.fromisoformat(text))


def parse_size(value: str | int) -> int:
    """Return the bytes of text such as "512MB" (10^6), or of a number. Raises ValueError unless they are whole and above zero."""
    amount = _amount(value, _BYTES) if isinstance(value, str) else _number(value)
    if amount is None or not (1 <= amount < 2**63) or amount != int(amount):
        raise ValueError(f"expected {SIZE}, got {value!r}")
    return int(amount)


def format_duration(seconds: float) -> str:
    """Return seconds as people read them: 450ms, 1.5s, 12s, 3m 20s, 2h 5m, 3d 4h."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = round(seconds)
    for unit, size, below, part in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{unit}" + (f" {rest}{below}" if rest else "")
    return f"{whole}s"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _amount(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None or match[2] not in units or len(match[1]) > 20:
        return None
    scaled = float(match[1]) * units[match[2]]
    return round(scaled, 9)


def counted(n: int, noun: str, does: str = "") -> str:
    """Return "1 job" or "2,000 jobs", and with "wait" "1 job waits" or "2,000 jobs wait"."""
    if n == 1:
        return f"1 {noun} {_OF_ONE.get(does, f'{does}s')}" if does else f"1 {noun}"
    return f"{n:,} {noun}s {does}".rstrip()


def iso(microseconds: int | None) -> str | None:
    """Return ISO 8601 text in UTC with microseconds; a time outside of the calendar becomes the nearest time inside."""
    if not isinstance(microseconds, int):  # other programs can put a text into SQLite
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        moment = (datetime.max if microseconds > 0 else datetime.min).replace(tzinfo=UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
