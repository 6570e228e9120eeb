"""The checks of the extras of a new job: an error names the key and what was expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, NoReturn, SupportsIndex

from supervisor.errors import InvalidJob
from supervisor.jobs import MAX_TAGS
from supervisor.stores.extras import MAX_PARENTS, NO_EXTRAS, UNFINISHED, WAITING, Extras, Place
from supervisor.stores.records import microseconds
from supervisor.text.names import NAME, is_name
from supervisor.text.strict_json import MAX_INTEGER
from supervisor.text.units import TooLong, parse_duration

CHOICES = {
    "on_conflict": ("skip", "replace", "reject"),
    "on_failure": ("pass", "hold"),
    "on_parent_failed": ("cancel", "run", "wait"),
}
NEEDS = {
    "unique_while": "unique", "on_conflict": "unique", "on_failure": "key", "on_parent_failed": "after",
}  # fmt: skip
"""The options that go with another one."""


def checked_extras(given: Mapping[str, Any]) -> Extras | None:
    """Return the extras, None if all of them are defaults. Raises InvalidJob, and TypeError for an unknown name."""
    for name in given.keys() - _CHECKS.keys():
        raise TypeError(f"unexpected option {name!r} of a job")
    found: dict[str, Any] = {name: _CHECKS[name](name, value) for name, value in given.items() if value is not None}
    extras = NO_EXTRAS._replace(**found)
    if extras == NO_EXTRAS:
        return None
    for name, other in NEEDS.items():
        if getattr(extras, name) != getattr(NO_EXTRAS, name) and getattr(extras, other) == getattr(NO_EXTRAS, other):
            raise InvalidJob(f"{name}: expected {other} with it")
    return extras


def wrong(key: str, expected: str, value: Any) -> NoReturn:
    raise InvalidJob(f"{key}: expected {expected}, got {value!r:.80}")


def name_of(key: str, value: Any) -> str:
    """Return the name as plain text. Raises InvalidJob."""
    if not is_name(value):
        wrong(key, NAME, value)
    return value if type(value) is str else str.__str__(value)


def _choice(key: str, value: Any) -> str:
    if value not in CHOICES[key]:
        wrong(key, " or ".join(CHOICES[key]), value)
    return str(value)


def _while(key: str, value: Any) -> str | int:
    if isinstance(value, str) and value in (WAITING, UNFINISHED):
        return str(value)
    try:
        return microseconds(parse_duration(value))
    except TooLong as error:
        raise InvalidJob(f"{key}: {error}") from None
    except (TypeError, ValueError):
        wrong(key, f"{WAITING}, {UNFINISHED} or a time such as 10m", value)


def _duration(key: str, value: Any) -> int:
    try:
        return microseconds(parse_duration(value))
    except (TypeError, ValueError) as error:
        raise InvalidJob(f"{key}: {error}") from None


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > MAX_TAGS:
        wrong(key, f"a list of at most {MAX_TAGS} texts", value)
    return tuple(dict.fromkeys(name_of(key, each) for each in value))


def _ids(key: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > MAX_PARENTS:
        wrong(key, f"a list of at most {MAX_PARENTS} ids of jobs", value)
    return tuple(dict.fromkeys(each if isinstance(each, Place) else _id(key, each) for each in value))


def _id(key: str, value: Any) -> int:
    """Return an id, also that of a job of a workflow."""
    if not isinstance(value, SupportsIndex) or isinstance(value, bool) or not 0 < index(value) <= MAX_INTEGER:
        wrong(key, "a list of ids of jobs", value)
    return index(value)


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "unique": name_of, "unique_while": _while, "on_conflict": _choice, "key": name_of, "on_failure": _choice, "group": name_of,
    "after": _ids, "on_parent_failed": _choice, "tags": _texts, "expires": _duration,
}  # fmt: skip
