"""The one rule for payloads, results and headers: strict JSON, which every store keeps unchanged.

orjson alone writes NaN as null, loads a 30-digit integer as a float and fails at depth 255; so this module checks values too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import orjson

MAX_DEPTH = 100
MAX_INTEGER = 2**63 - 1
_LONG = 19  # digits: fewer are a 64-bit integer
_LONG_NUMBER = re.compile(rf"[0-9][0-9]{{{_LONG - 1}}}")  # so written, the search is two or three times as fast
_LONG_DIGITS = re.compile(_LONG_NUMBER.pattern.encode())
_FLAT = frozenset({str, int, bool, type(None)})
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


NO_VALUE = "!"
"""Begins a text that stands in place of JSON, since a store has found no value: the reason follows."""


class NotJSON(ValueError):
    """A value that is not strict JSON, or JSON that is too large. The message names the value and what was expected."""


def encode(value: Any, *, limit: int, what: str = "payload") -> str:
    """Return `value` as JSON text.

    Raises NotJSON unless `value` is made of dicts with text keys, lists, tuples, valid Unicode text, 64-bit integers, finite
    floats, booleans and None, or of subclasses of these, is nested at most 100 deep, and has at most `limit` bytes as JSON.
    """
    flat = _is_flat(value)
    if not flat:
        _check(value, what, limit=limit)
    try:
        text = orjson.dumps(value, default=_plain, option=_STRICT)
    except (TypeError, ValueError) as error:
        _check(value, what, limit=limit)  # raises a better message if it knows the reason
        raise NotJSON(f"{what}: not JSON: {error}") from None
    if flat and len(text) >= _LONG and _LONG_DIGITS.search(text):
        _check(value, what, limit=limit)
    if len(text) > limit:
        raise NotJSON(f"{what}: {len(text)} bytes of JSON, expected at most {limit}")
    return text.decode()


def decode(text: str | bytes, what: str = "payload") -> Any:
    """Return the value of JSON `text`. Raises NotJSON, and nothing else, by the rule of `encode` without its limit."""
    try:
        value = orjson.loads(text)
    except (ValueError, TypeError) as error:
        raise NotJSON(f"{what}: {_reason(text) or f'not JSON: {error}'}") from None
    # Hot path: a value from orjson can be wrong in two ways only, and most texts are too short for either.
    if len(text) < _LONG:
        return value
    plain = text if isinstance(text, str) else text.decode()
    if len(plain) > MAX_DEPTH and plain.count("[") + plain.count("{") > MAX_DEPTH:
        _check(value, what)
    if len(plain) >= _LONG and _LONG_NUMBER.search(plain):  # second, since json raises RecursionError for deep text
        json.loads(plain, parse_int=lambda digits: _exact(digits, what))
    return value


def _reason(text: str | bytes) -> str:
    return text.removeprefix(NO_VALUE) if isinstance(text, str) and text.startswith(NO_VALUE) else ""


def decode_object(text: str, what: str) -> dict[str, Any]:
    """Return the value as `decode` does. Raises NotJSON also if the value is not an object."""
    value = decode(text, what)
    if not isinstance(value, dict):
        raise NotJSON(f"{what}: expected an object, not {type(value).__name__}")
    return value


def unused(value: Any, what: str) -> None:
    """Take a value that is not kept, so that it need not be JSON. Raises NotJSON for one whose work nobody has done: a coroutine or a
    generator."""
    if isinstance(value, CoroutineType | GeneratorType | AsyncGeneratorType):
        raise NotJSON(f"{what}: {_mistake(value)}")


def _is_flat(value: Any) -> bool:
    """Return whether orjson refuses all that can be wrong with `value` except a too large integer, so no walk is needed."""
    if type(value) is dict:
        for key, item in value.items():  # noqa: SIM110 (twice as fast as `all` of a generator)
            if type(key) is not str or type(item) not in _FLAT:
                return False
        return True
    return type(value) in _FLAT


def _plain(value: Any) -> Any:
    """Return a float or a tuple in place of a subclass, which orjson refuses."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, tuple):
        return tuple(value)
    raise TypeError(f"{_kind_of(value)} is not JSON")


def _exact(digits: str, what: str) -> int:
    if len(digits) > 20 or not -MAX_INTEGER - 1 <= int(digits) <= MAX_INTEGER:
        raise NotJSON(f"{what}: {digits:.40} is not a 64-bit integer")
    return int(digits)


def _check(value: Any, what: str, *, limit: int | None = None) -> None:
    """Raise NotJSON if `value` is not strict JSON. The walk is a loop, so only MAX_DEPTH limits it, not the interpreter.

    A list that contains itself twice has 2^100 values at that depth, so the walk ends once it has seen more than `limit` values.
    """
    level, depth, seen = [value], 0, 0
    while level:
        seen += len(level)
        if limit is not None and seen > limit:
            raise NotJSON(f"{what}: more than {limit} values, expected at most {limit} bytes of JSON")
        if depth >= MAX_DEPTH and any(isinstance(item, dict | list | tuple) for item in level):
            raise NotJSON(f"{what}: nested deeper than {MAX_DEPTH}")
        below: list[Any] = []
        for item in level:
            if item is None or item is True or item is False or isinstance(item, str):
                continue
            if isinstance(item, dict):
                for key in item:
                    if not isinstance(key, str):
                        raise NotJSON(f"{_path_to(item, value, what, depth)}: key {key!r} is not text")
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
            elif (mistake := _mistake(item)) is not None:
                raise NotJSON(f"{_path_to(item, value, what, depth)}: {mistake}")
        level, depth = below, depth + 1


def _mistake(item: Any) -> str | None:
    """Return the reason why this single value is not JSON, or None if it is."""
    if isinstance(item, int):
        if -MAX_INTEGER - 1 <= item <= MAX_INTEGER:
            return None
        shown = f"{item:.6g} is " if abs(item) < 10**300 else ""
        return f"{shown}not a 64-bit integer"
    if isinstance(item, float):
        finite = item == item and item not in (float("inf"), float("-inf"))
        return None if finite else f"{float(item)} is not a finite number"
    if isinstance(item, CoroutineType):
        return "a coroutine is not JSON: nobody awaited it"
    if isinstance(item, GeneratorType | AsyncGeneratorType):
        return f"a {type(item).__name__.replace('_', ' ')} is not JSON: nobody iterated over it"
    return f"{_kind_of(item)} is not JSON"


def _kind_of(item: Any) -> str:
    """Return the name of its type, with the module: `numpy.bool` is no bool."""
    kind = type(item)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _path_to(wanted: Any, value: Any, what: str, depth: int) -> str:
    """Return the path of the value that `_check` found at this depth, such as `result.a[0].b`."""
    level = [(value, what)]
    for _ in range(depth):
        level = [pair for item, path in level for pair in _parts(item, path)]
    return next((path for item, path in level if item is wanted), what)


def _parts(item: Any, path: str) -> Iterator[tuple[Any, str]]:
    if isinstance(item, dict):
        for key, part in item.items():
            yield part, f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r:.80}]"
    elif isinstance(item, list | tuple):
        for index, part in enumerate(item):
            yield part, f"{path}[{index}]"
