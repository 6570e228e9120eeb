"""The kinds of value that a config key can have. The error of each is what it expects; others add the key and what is there.

In a file a duration or a size needs a unit, and is never null; in Python a number is seconds or bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

from supervisor.config.section import Kind, Place, is_none
from supervisor.text.names import NAME, is_name
from supervisor.text.units import DURATION, SIZE, parse_duration, parse_size

T = TypeVar("T")


def text(value: Any, place: Place | None) -> str:
    _refuse_unquoted(value)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("expected printable text")
    return value


def optional_text(value: Any, place: Place | None) -> str | None:
    return None if value is None else text(value, place)


def queue(value: Any, place: Place | None) -> str | None:
    return None if value is None else _queue(value)


def _queue(value: Any) -> str:
    _refuse_unquoted(value)
    if not is_name(value):
        raise ValueError(f"expected {NAME}")
    return str(value)


def _refuse_unquoted(value: Any) -> None:
    if isinstance(value, bool):
        raise ValueError("expected text; YAML reads yes, no, on, off, true and false as booleans: quote it")
    if isinstance(value, int | float):
        raise ValueError("expected text; YAML reads this as a number: quote it")


def one_of(*choices: str) -> Kind[str]:
    def check(value: Any, place: Place | None) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"expected {' or '.join(choices)}")
        return value

    return check


def whole(least: int, most: int) -> Kind[int]:
    def check(value: Any, place: Place | None) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return value

    return check


def or_none(kind: Kind[T], expected: str = "") -> Kind[T | None]:
    """That kind, or `none` in a file and None in Python."""

    def check(value: Any, place: Place | None) -> T | None:
        if is_none(value, place):
            return None
        try:
            return kind(value, place)
        except ValueError as error:
            raise ValueError(expected or f"{error}, or none") from None

    return check


def _measured(parse: Callable[..., T], expected: str, example: str, none: str = "") -> Kind[Any]:
    """A duration or a size. With the text `none`, which ends the list of what is expected, it may be none."""

    def check(value: Any, place: Place | None) -> T | None:
        if none and is_none(value, place):
            return None
        if place is not None and isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError(f"expected {expected}{none}; a number needs a unit: write {example}")
        try:
            return parse(value)
        except (ValueError, TypeError):
            raise ValueError(f"expected {expected}{none}") from None

    return check


duration: Kind[float] = _measured(parse_duration, DURATION, "30s")
limit: Kind[float | None] = _measured(parse_duration, DURATION, "30s", ", or none for no limit")
kept: Kind[float | None] = _measured(
    partial(parse_duration, zero=True), DURATION, "30s", ", 0s to drop at once, or none to keep for ever"
)
size: Kind[int] = _measured(parse_size, SIZE, "1MB")
size_limit: Kind[int | None] = _measured(parse_size, SIZE, "512MB", ", or none for no limit")
_max_in_flight = or_none(whole(1, 100_000), "expected half, none, or a whole number from 1 to 100000")
_jitter_width: Kind[float] = _measured(parse_duration, "full, none, or a duration such as 200ms", "200ms")


def jitter(value: Any, place: Place | None) -> str | float:
    return value if isinstance(value, str) and value in ("full", "none") else _jitter_width(value, place)


def max_in_flight(value: Any, place: Place | None) -> str | int | None:
    return value if isinstance(value, str) and value == "half" else _max_in_flight(value, place)


def factor(value: Any, place: Place | None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 1000:
        raise ValueError("expected a number from 1 to 1000")
    return float(value)


def share(value: Any, place: Place | None) -> Fraction:
    if not isinstance(value, bool) and isinstance(value, int | float | Fraction) and math.isfinite(value):
        exact = Fraction(str(value))
        if 0 < exact <= 1:
            return exact
    raise ValueError("expected a number above 0 and up to 1")


def flag(value: Any, place: Place | None) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def queue_names(value: Any, place: Place | None) -> frozenset[str] | None:
    if value == "all" or (value is None and place is None):
        return None
    if not isinstance(value, list | tuple | frozenset | set) or not value:
        raise ValueError("expected all, or a list of queue names")
    return frozenset(map(_queue, value))


def plugin_paths(value: Any, place: Place | None) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("expected a list of directories, files or modules")
    return tuple(text(path, place) for path in value)
