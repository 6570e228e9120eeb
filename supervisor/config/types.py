"""The kinds of value that a config key can have. Each raises ValueError with what it expects; the caller adds key and value.

In a file a duration or a size needs a unit, and is never null; in Python a number is seconds or bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import partial
from ipaddress import ip_address
from typing import Any, NamedTuple, TypeVar

from supervisor.config.section import Kind, Place, is_none
from supervisor.text.names import NAME, is_name
from supervisor.text.units import DURATION, SIZE, TOO_LONG, TooLong, format_duration, parse_duration, parse_size

T = TypeVar("T")


def _checked(is_right: Callable[[Any], bool], expected: str) -> Kind[Any]:
    def check(value: Any, place: Place | None) -> Any:
        if not is_right(value):
            raise ValueError(f"expected {expected}")
        return value

    return check


def _is_number(value: Any, least: float, most: float, kind: Any = int | float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and bool(least <= value <= most)


def one_of(*choices: str) -> Kind[str]:
    return _checked(lambda value: isinstance(value, str) and value in choices, " or ".join(choices))


def whole(least: int, most: int) -> Kind[int]:
    return _checked(lambda value: _is_number(value, least, most, int), f"a whole number from {least} to {most}")


flag: Kind[bool] = _checked(lambda value: isinstance(value, bool), "true or false")


def _text(is_right: Callable[[str], bool], expected: str) -> Kind[str]:
    def check(value: Any, place: Place | None) -> str:
        if isinstance(value, bool):
            raise ValueError("expected text; YAML reads yes, no, on, off, true and false as booleans: quote it")
        if isinstance(value, int | float):
            raise ValueError("expected text; YAML reads this as a number: quote it")
        if not isinstance(value, str) or not is_right(value):
            raise ValueError(f"expected {expected}")
        return value

    return check


text = _text(lambda value: value != "" and value.isprintable(), "printable text")
queue_name = _text(is_name, NAME)


def optional(kind: Kind[T]) -> Kind[T | None]:
    """Return the kind that takes null, which is None, and what `kind` takes."""
    return lambda value, place: None if value is None else kind(value, place)


def or_none(kind: Kind[T], expected: str = "") -> Kind[T | None]:
    """Return the kind that takes `none` in a file and None in Python, and what `kind` takes."""

    def check(value: Any, place: Place | None) -> T | None:
        if is_none(value, place):
            return None
        try:
            return kind(value, place)
        except ValueError as error:
            raise ValueError(expected or f"{error}, or none") from None

    return check


def or_text(*choices: str, otherwise: Kind[T]) -> Kind[T | str]:
    return lambda value, place: value if isinstance(value, str) and value in choices else otherwise(value, place)


def _measured(parse: Callable[..., T], expected: str, example: str, none: str = "") -> Kind[Any]:
    """Return the kind of a duration or a size. If `none` is given, the value may be none, and this text ends the message."""

    def check(value: Any, place: Place | None) -> T | None:
        if none and is_none(value, place):
            return None
        if place is not None and isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError(f"expected {expected}{none}; a number needs a unit: write {example}")
        try:
            return parse(value)
        except TooLong:
            raise ValueError(f"{TOO_LONG}{none}") from None
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
jitter: Kind[str | float] = or_text(
    "full", "none", otherwise=_measured(parse_duration, "full, none, or a duration such as 200ms", "200ms")
)
max_in_flight: Kind[str | int | None] = or_text(
    "half", otherwise=or_none(whole(1, 100_000), "expected half, none, or a whole number from 1 to 100000")
)


class Rate(NamedTuple):
    """At most `claims` within any time of `per` seconds."""

    claims: int
    per: float

    def __str__(self) -> str:
        return f"{self.claims}/{format_duration(self.per).replace(' ', '')}"


MAX_RATE = 1_000_000


def rate(value: Any, place: Place | None) -> Rate:
    """Return a rate such as 100/1m."""
    if isinstance(value, Rate):
        return value
    number, _, per = value.partition("/") if isinstance(value, str) else ("", "", "")
    number = number.strip()
    if number.isascii() and number.isdecimal() and 1 <= int(number[:20]) <= MAX_RATE:
        with suppress(ValueError):
            return Rate(int(number), parse_duration(per.strip()))
    raise ValueError(f"expected a number from 1 to {MAX_RATE} and a duration, such as 100/1m")


def factor(value: Any, place: Place | None) -> float:
    if not _is_number(value, 1, 1000):
        raise ValueError("expected a number from 1 to 1000")
    return float(value)


def share(value: Any, place: Place | None) -> Fraction:
    """Return a share above 0 and up to 1 as an exact fraction: 0.2 is 1/5."""
    if not _is_number(value, 0, 1, int | float | Fraction) or value == 0:
        raise ValueError("expected a number above 0 and up to 1")
    return Fraction(str(value))


def shares(value: Any, place: Place | None) -> Mapping[str, float]:
    """Return shares by name."""
    expected = "expected a mapping of names to numbers from 1 to 1000"
    if not isinstance(value, Mapping):
        raise ValueError(expected)
    for name, n in value.items():
        if not is_name(name) or not _is_number(n, 1, 1000):
            raise ValueError(f"{expected}, got {name!r:.80}: {n!r:.80}")
    return {str(name): float(n) for name, n in value.items()}


def queue_list(value: Any, place: Place | None, expected: str = "expected a list of queue names") -> frozenset[str]:
    if not isinstance(value, list | tuple | frozenset | set) or not value:
        raise ValueError(expected)
    return frozenset(queue_name(each, place) for each in value)


def queue_names(value: Any, place: Place | None) -> frozenset[str] | None:
    if value == "all" or (value is None and place is None):
        return None
    return queue_list(value, place, "expected all, or a list of queue names")


def plugin_paths(value: Any, place: Place | None) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("expected a list of directories, files or modules")
    return tuple(text(path, place) for path in value)


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or ip_address(self.host).is_loopback


def address(value: Any, place: Place | None) -> Address:
    """Return an address to listen on: a number of IPv4 or, in brackets, IPv6, or localhost; and a port, which may be 0."""
    expected = "an address and a port, such as 127.0.0.1:8080 or [::1]:8080"
    if isinstance(value, Address):
        return value
    host, _, port = text(value, place).rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        known = host == "localhost" or ip_address(host)
        if known and port.isascii() and port.isdecimal() and int(port) < 65_536:
            return Address(host, int(port))
    except ValueError:
        pass
    raise ValueError(f"expected {expected}")
