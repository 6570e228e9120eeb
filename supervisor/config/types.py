"""The kinds of value a config key can have. Each says what it expected; the loader adds where, and what it got.

Validation with a context is of YAML, where a number without a unit is refused and nothing (null) is never a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import PlainValidator, ValidationInfo

from supervisor.text.units import DURATION, SIZE, parse_duration, parse_limit, parse_size

T = TypeVar("T")


def from_yaml(info: ValidationInfo) -> bool:
    return info.context is not None


def expect_text(value: Any) -> str:
    if isinstance(value, bool):
        raise ValueError("expected text; YAML reads yes, no, on, off, true and false as booleans: quote it")
    if isinstance(value, int | float):
        raise ValueError("expected text; YAML reads this as a number: quote it")
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("expected printable text")
    return value


def _one_of(*choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices or not isinstance(value, str):
            raise ValueError(f"expected {' or '.join(choices)}{_quote_hint(value, choices)}")
        return value

    return check


def _quote_hint(value: Any, choices: tuple[str, ...]) -> str:
    wanted = (
        {True: ("yes", "on", "true"), False: ("no", "off", "false")}.get(value, ()) if value in (True, False) else ()
    )
    return "; YAML reads it as a boolean: quote it" if set(wanted) & set(choices) else ""


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return value

    return check


def _or_none(check: Callable[[Any], Any]) -> Callable[[Any, ValidationInfo], Any]:
    """`none` in YAML, None in Python."""

    def optional(value: Any, info: ValidationInfo) -> Any:
        if value == "none" or (value is None and not from_yaml(info)):
            return None
        try:
            return check(value)
        except ValueError as error:
            raise ValueError(f"{error}, or none") from None

    return optional


def _duration(value: Any, info: ValidationInfo) -> float:
    return _measure(value, info, parse_duration, DURATION, "30s")


def _limit(value: Any, info: ValidationInfo) -> float | None:
    if value is None and not from_yaml(info):
        return None
    return _measure(value, info, parse_limit, f"{DURATION}, or none for no limit", "30s")


def _kept(value: Any, info: ValidationInfo) -> float | None:
    if value is None and not from_yaml(info):
        return None
    expected = f"{DURATION}, 0s to drop at once, or none to keep for ever"
    return _measure(value, info, partial(parse_limit, zero=True), expected, "30s")


def _size(value: Any, info: ValidationInfo) -> int:
    return _measure(value, info, parse_size, SIZE, "1MB")


def _size_limit(value: Any, info: ValidationInfo) -> int | None:
    if value == "none" or (value is None and not from_yaml(info)):
        return None
    return _measure(value, info, parse_size, f"{SIZE}, or none for no limit", "512MB")


def _measure(value: Any, info: ValidationInfo, parse: Callable[[Any], T], expected: str, example: str) -> T:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and from_yaml(info):
        raise ValueError(f"expected {expected}; a number needs a unit: write {example}")
    try:
        return parse(value)
    except (ValueError, TypeError):
        raise ValueError(f"expected {expected}") from None


def _jitter(value: Any, info: ValidationInfo) -> str | float:
    if value in ("full", "none"):
        return str(value)
    return float(_measure(value, info, parse_duration, "full, none, or a duration such as 200ms", "200ms"))


def _factor(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 1000:
        raise ValueError("expected a number from 1 to 1000")
    return float(value)


def _share(value: Any) -> Fraction:
    expected = ValueError("expected a number above 0 and up to 1")
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise expected
    if isinstance(value, float) and not math.isfinite(value):
        raise expected
    share = Fraction(str(value))
    if not 0 < share <= 1:
        raise expected
    return share


def _max_in_flight(value: Any, info: ValidationInfo) -> Any:
    if value == "half":
        return value
    try:
        return _or_none(_whole(1, 100_000))(value, info)
    except ValueError:
        raise ValueError("expected half, none, or a whole number from 1 to 100000") from None


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _names(value: Any, info: ValidationInfo) -> frozenset[str] | None:
    if value == "all" or (value is None and not from_yaml(info)):
        return None
    if not isinstance(value, list | tuple | frozenset | set) or not value:
        raise ValueError("expected all, or a list of queue names")
    return frozenset(expect_text(name) for name in value)


def _paths(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("expected a list of directories, files or modules")
    return tuple(expect_text(path) for path in value)


Text = Annotated[str, PlainValidator(expect_text)]
OptionalText = Annotated[str | None, PlainValidator(lambda value: None if value is None else expect_text(value))]
Duration = Annotated[float, PlainValidator(_duration)]
OptionalDuration = Annotated[float | None, PlainValidator(_duration)]
Limit = Annotated[float | None, PlainValidator(_limit)]
Kept = Annotated[float | None, PlainValidator(_kept)]
Size = Annotated[int, PlainValidator(_size)]
SizeLimit = Annotated[int | None, PlainValidator(_size_limit)]
Flag = Annotated[bool, PlainValidator(_flag)]
Jitter = Annotated[str | float, PlainValidator(_jitter)]
Factor = Annotated[float, PlainValidator(_factor)]
Share = Annotated[Fraction, PlainValidator(_share)]
MaxInFlight = Annotated[Any, PlainValidator(_max_in_flight)]
QueueNames = Annotated[frozenset[str] | None, PlainValidator(_names)]
PluginPaths = Annotated[tuple[str, ...], PlainValidator(_paths)]
Workers = Annotated[int, PlainValidator(_whole(1, 1000))]
Positive = Annotated[int, PlainValidator(_whole(1, 1_000_000_000))]
OptionalPositive = Annotated[int | None, PlainValidator(_or_none(_whole(1, 1_000_000_000)))]
MaxRetries = Annotated[int, PlainValidator(_whole(0, 1000))]
OptionalMaxRetries = Annotated[int | None, PlainValidator(_whole(0, 1000))]
Priority = Annotated[int, PlainValidator(_whole(-1_000_000, 1_000_000))]
StartMethod = Annotated[str, PlainValidator(_one_of("fork", "spawn"))]
LogLevel = Annotated[str, PlainValidator(_one_of("debug", "info", "warning", "error"))]
LogFormat = Annotated[str, PlainValidator(_one_of("text", "json"))]
