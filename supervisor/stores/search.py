"""Find jobs by a filter, a page at a time. A page looks at a bounded number of jobs, and has the place where it stopped."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import orjson

from supervisor.jobs import JobState
from supervisor.stores.limits import LAST_ID
from supervisor.stores.records import Place
from supervisor.text.units import iso

CLOCK_STEP = 5_000_000
"""The most, in microseconds, by which a job may be older than one with a lower id: the clock may have been set back by so much."""
MAX_TEXT = 200
"""Characters of a text that jobs are searched for."""
MAX_FAILURES = 10_000
"""The newest failed jobs, which are grouped."""
SORTED = orjson.OPT_SORT_KEYS
LOWER = str.maketrans({chr(code): chr(code).lower() for code in range(ord("A"), ord("Z") + 1)})
CURSOR = re.compile(r"^(?:(-?[0-9]{1,18})\.)?([0-9]{1,18})$")


class JobFilter(NamedTuple):
    """The jobs with these values; None is any. `since` and `until` are microseconds since the epoch: a job is created at `since` or
    later, and before `until`. `dead_letter` is "pending", "delivered", or "any" for either; `sink` is one that
    a pending dead letter waits for, and may be given only with that. A job has the `text` if it is in its
    payload, its headers or the errors of its attempts, as they are in JSON, and the `error` if that is in the cause, type and message
    of its last error: see `has_error`. A to Z match in either case. `header` is the name and the value of a header: see `has_header`."""

    state: JobState | None = None
    queue: str | None = None
    handler: str | None = None
    since: int | None = None
    until: int | None = None
    text: str | None = None
    dead_letter: str | None = None
    sink: str | None = None
    error: str | None = None
    tag: str | None = None
    header: tuple[str, str] | None = None

    @property
    def by_finish(self) -> bool:
        """Whether the jobs are in the order in which they finished, as an index has them, and not in that of their ids. Jobs that
        were created until some time are few ids, but may have finished at any time."""
        is_ended = self.state is not None and self.state.terminal
        return is_ended and self.dead_letter is None and self.until is None and self.tag is None


@dataclass(frozen=True)
class SearchLimits:
    looked: int = 10_000
    """Jobs that are compared with the filter for one page."""
    searched: int = 10_000
    """Jobs whose text is searched for one page."""
    characters: int = 50_000_000
    """Characters that are searched for one page, about: the batch under way is searched to its end."""
    batch: int = 200
    """Jobs whose text is searched by one statement."""
    few: int = 50_000
    """So many jobs of a state are sorted; if there are more, they are looked for among the newest jobs."""


USUAL = SearchLimits()
UNLIMITED = SearchLimits(looked=LAST_ID, few=LAST_ID - 1)


class FoundJobs(NamedTuple):
    """One page. The iterator `jobs` reads the jobs some at a time, and leaves out those that are deleted meanwhile.

    `next` is the cursor behind the page, None if there are no more. If it is not `complete`, the search has stopped before
    the page was full, since it had looked at `searched` jobs: `next` goes on from there."""

    ids: list[int]
    jobs: Iterator[dict[str, Any]]
    next: str | None
    searched: int
    complete: bool


class Walk(NamedTuple):
    """The places of jobs that pass a filter, and the place of the last job looked at if there may be more behind it."""

    places: list[Place]
    stopped: Place | None = None


class IdRange(NamedTuple):
    first: int = 0
    last: int = LAST_ID


class Source(Protocol):
    """The part that each store does in its own way, inside a snapshot."""

    def last_id(self) -> int: ...

    def created_at(self, id: int) -> int | None:
        """Return when the first job with this id or a higher one was created."""

    def walk(self, where: JobFilter, ids: IdRange, after: Place | None, limit: int, limits: SearchLimits) -> Walk:
        """Return up to `limit` jobs that pass the filter but for its text, behind `after`: those that finished last first, or
        those with the highest ids. A place is (finished_at, id), or (0, id)."""

    def with_text(self, ids: Sequence[int], text: str) -> tuple[Collection[int], int]:
        """Return those of these jobs that have the text, and how many characters all of them have."""

    def with_error(self, ids: Sequence[int], text: str) -> tuple[Collection[int], int]:
        """Return those of these jobs whose last error has the text, and how many characters were read."""

    def headers(self, ids: Sequence[int]) -> Iterable[tuple[int, str]]:
        """Return the headers of those of these jobs that have some, as JSON text."""


class Found(NamedTuple):
    places: list[Place]
    next: Place | None
    searched: int
    complete: bool


def find(source: Source, where: JobFilter, before: str | None, limit: int, limits: SearchLimits) -> FoundJobs:
    """Find one page, whose jobs are still to be read. Raises ValueError if `before` is no cursor of this filter."""
    after = None if before is None else place_of(before, where)
    found = _find(source, where, after, limit, limits)
    ids = [id for _, id in found.places]
    following = None if found.next is None else cursor_of(found.next, where)
    return FoundJobs(ids, iter(()), following, found.searched, found.complete)


def _find(source: Source, where: JobFilter, after: Place | None, limit: int, limits: SearchLimits) -> Found:
    ids = _id_range(source, where)
    if where.text is not None or where.error is not None or where.header is not None:
        return _search(source, where, ids, after, limit, limits)
    places, stopped = source.walk(where, ids, after, limit + 1, limits)
    if len(places) > limit:
        return Found(places[:limit], places[limit - 1], limit, True)
    return Found(places, stopped, len(places) if stopped is None else limits.looked, stopped is None)


def _search(
    source: Source, where: JobFilter, ids: IdRange, after: Place | None, limit: int, limits: SearchLimits
) -> Found:
    found: list[Place] = []
    searched = characters = 0
    while searched < limits.searched and characters < limits.characters:
        at_once = min(limits.batch, limits.searched - searched)
        places, stopped = source.walk(where, ids, after, at_once, limits)
        matching, length = _matching(source, where, [id for _, id in places])
        characters += length
        for place in places:
            searched += 1
            if place[1] in matching:
                found.append(place)
                if len(found) == limit:
                    return Found(found, place, searched, True)
        if stopped is not None:
            return Found(found, stopped, searched, False)
        if len(places) < at_once:
            return Found(found, None, searched, True)
        after = places[-1]
    return Found(found, after, searched, False)


def _matching(source: Source, where: JobFilter, ids: Sequence[int]) -> tuple[Collection[int], int]:
    """Return those of the jobs that have the texts of the filter, and how many characters were searched."""
    matching, characters = set(ids), 0
    if where.header is not None:
        headers = dict(source.headers(ids))
        matching = {id for id, text in headers.items() if has_header(text, *where.header)}
        characters = sum(map(len, headers.values()))
    for text, having in ((where.error, source.with_error), (where.text, source.with_text)):
        if text is not None and matching:
            found, length = having(sorted(matching), text)
            matching &= set(found)
            characters += length
    return matching, characters


def searched_text(value: object) -> str:
    """Return the value if jobs can be searched for it, as `text` or `error` of a filter. Raises ValueError."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or "\0" in value:
        raise ValueError(f"expected a text of 1 to {MAX_TEXT} characters")
    return value


def has_error(last: Mapping[str, Any], text: str) -> bool:
    """Return whether the text is in this error, written as `cause type: message`."""
    shown = f"{last.get('cause') or ''} {last.get('type') or ''}: {last.get('message') or ''}"
    return text.translate(LOWER) in shown.translate(LOWER)


def header_of(text: str) -> tuple[str, str]:
    """Return the name and the value in NAME=VALUE. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError("expected NAME=VALUE")
    return name, value


def has_header(headers: str, name: str, value: str) -> bool:
    """Return whether these headers, as JSON text, have this one. A value that is no text is compared as JSON, such as 5 or null; the
    order of keys and spaces make no difference, and 7 is not 7.0."""
    try:
        found = orjson.loads(headers)[name]
    except (ValueError, TypeError, KeyError):  # another program may have put something else there
        return False
    return value == found if isinstance(found, str) else _sorted_json(value) == orjson.dumps(found, option=SORTED)


@lru_cache(maxsize=8)  # one value is compared with those of many jobs
def _sorted_json(text: str) -> bytes | None:
    try:
        return orjson.dumps(orjson.loads(text), option=SORTED)
    except ValueError:
        return None


def _id_range(source: Source, where: JobFilter) -> IdRange:
    """Return the ids that jobs created at that time may have: ids rise with the time, but for a clock that is set back."""
    if where.by_finish or (where.since is None and where.until is None):
        return IdRange()
    first = 0 if where.since is None else _first_id(source, where.since - CLOCK_STEP)
    return IdRange(first, LAST_ID if where.until is None else _first_id(source, where.until + CLOCK_STEP) - 1)


def _first_id(source: Source, at: int) -> int:
    """Return the lowest id of which all jobs with it or a higher one were created at this time or later."""
    low, high = 0, source.last_id() + 1
    while low < high:
        middle = (low + high) // 2
        created = source.created_at(middle)
        if created is None or created >= at:
            high = middle
        else:
            low = middle + 1
    return low


def cursor_of(place: Place, where: JobFilter) -> str:
    finished_at, id = place
    return f"{finished_at}.{id}" if where.by_finish else str(id)


def place_of(cursor: str, where: JobFilter) -> Place:
    found = CURSOR.fullmatch(cursor)
    if found is None or (found[1] is not None) is not where.by_finish:
        raise ValueError(f"expected the `next` of a page with the same filter, got {cursor[:50]!r}")
    return int(found[1] or 0), int(found[2])


# --- failures


class FailureGroup(NamedTuple):
    """Failed jobs of one handler whose last attempts failed in the same way; `id` is the newest of them."""

    handler: str
    n: int
    last_at: int
    id: int


def failure_dict(group: FailureGroup, last: Mapping[str, Any]) -> dict[str, Any]:
    """`last` is the last attempt of the newest job; empty if it has none."""
    return {
        "handler": group.handler,
        "type": str(last.get("type") or ""),
        "cause": last.get("cause"),
        "count": group.n,
        "last_at": iso(group.last_at),
        "example_id": group.id,
        "message": str(last.get("message") or ""),
    }
