"""The extras of a job: what relates it to other jobs, and what only some jobs have. A plain job has none, and costs nothing more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import orjson

WAITING, UNFINISHED = "waiting", "unfinished"
"""The values of `unique_while` besides a time: until the job is claimed, or until it has ended."""

MAX_PARENTS = 10_000


class Extras(NamedTuple):
    """`unique_while` is WAITING, UNFINISHED, or microseconds from the enqueue on. `expires` is in microseconds from the enqueue on. A
    parent in `after` is an id; -1 - n is the job at place n of the same batch."""

    unique: str | None = None
    unique_while: str | int = UNFINISHED
    on_conflict: str = "skip"
    key: str | None = None
    on_failure: str = "pass"
    group: str | None = None
    after: tuple[int, ...] = ()
    on_parent_failed: str = "cancel"
    tags: tuple[str, ...] = ()
    expires: int | None = None


NO_EXTRAS = Extras()


class Place(int):
    """A parent that is in the same batch as its child: -1 - n for the job at place n."""


class ExistingId(int):
    """The id of a job that was there before: its unique key kept the enqueue from adding another. `replaced` is whether the job has
    become the new one: so it does with `on_conflict="replace"`, as long as it is not claimed."""

    replaced: bool

    def __new__(cls, id: int, *, replaced: bool = False) -> Self:
        self = super().__new__(cls, id)
        self.replaced = replaced
        return self


def extras_text(extras: Extras) -> str:
    """Return the extras as stores keep them: a JSON object without the defaults."""
    given = zip(Extras._fields, extras, NO_EXTRAS, strict=True)
    return orjson.dumps({name: value for name, value, default in given if value != default}).decode()


def extras_of(text: str | None) -> Extras:
    """The defaults if another program has put something else in its place: one bad row must not hold up others."""
    try:
        found = {} if text is None else orjson.loads(text)
        known = {name: value for name, value in found.items() if name in Extras._fields}
        for name in ("after", "tags"):
            if name in known:
                known[name] = tuple(known[name])
        return Extras(**known)
    except (ValueError, TypeError, AttributeError):
        return NO_EXTRAS


def shown_extras(text: str | None) -> Mapping[str, Any]:
    """Return the keys of a job's JSON that its extras give."""
    extras = extras_of(text)
    how_long = extras.unique_while / 1_000_000 if isinstance(extras.unique_while, int) else extras.unique_while
    return {
        "unique": extras.unique,
        "unique_while": None if extras.unique is None else how_long,
        "key": extras.key,
        "on_failure": extras.on_failure,
        "group": extras.group,
        "after": list(extras.after),
        "on_parent_failed": extras.on_parent_failed,
        "tags": list(extras.tags),
    }


def by_place(after: Iterable[int], ids: list[int]) -> tuple[int, ...]:
    """Return the ids of parents, some of which are places in the batch whose jobs so far have these `ids`."""
    return tuple(parent if parent >= 0 else ids[-1 - parent] for parent in after)
