"""Lists of jobs: the filters in an address, and one page of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from supervisor.http.errors import BadRequest
from supervisor.http.pages.rendering import parsed
from supervisor.jobs import JobState
from supervisor.stores.protocol import Store
from supervisor.stores.search import JobFilter
from supervisor.text.units import parse_duration

PAGE = 50
STATES = [state.value for state in JobState]
DEAD_LETTERS = ("any", "pending", "delivered")
MAX_VALUE = 500  # characters
SINCE = {"15m": "15 minutes", "1h": "hour", "1d": "day", "7d": "week"}


@dataclass(frozen=True)
class Asked:
    """The filters of a list, as its address has them. `since` and `until` are times, or durations before now."""

    state: str | None = None
    queue: str | None = None
    handler: str | None = None
    text: str | None = None
    since: str | None = None
    until: str | None = None
    dead_letter: str | None = None
    before: str | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Asked:
        """Raises BadRequest if a value can't be."""
        given = {each.name: query.get(each.name, "").strip()[:MAX_VALUE] or None for each in fields(cls)}
        for name, known in (("state", STATES), ("dead_letter", DEAD_LETTERS)):
            if given[name] not in (None, *known):
                raise BadRequest(f"{name}: expected one of {', '.join(known)}, got {given[name]!r}")
        for name in ("since", "until"):
            if (value := given[name]) is not None and parsed(value) is None and _seconds(value) is None:
                raise BadRequest(
                    f"{name}: expected a duration such as 1h, or a time such as 2026-11-30T10:00, got {value!r}"
                )
        return cls(**given)

    @property
    def filters(self) -> dict[str, str]:
        """The filters without the place of the page."""
        return {name: value for name, value in vars(self).items() if value is not None and name != "before"}

    @property
    def key(self) -> str:
        return urlencode({**self.filters, "before": self.before or ""})

    @property
    def is_live(self) -> bool:
        """Whether the list is worth reading again and again: a search is not, and older pages hardly change."""
        return self.before is None and self.text is None

    def address(self, path: str, before: str | None) -> str:
        return f"{path}?{urlencode(self.filters | ({} if before is None else {'before': before}))}"

    def filter(self, now: datetime) -> JobFilter:
        return JobFilter(
            None if self.state is None else JobState(self.state), self.queue, self.handler,
            _microseconds(self.since, now), _microseconds(self.until, now), self.text, self.dead_letter,
        )  # fmt: skip


@dataclass(frozen=True)
class Listed:
    jobs: list[dict[str, Any]]
    newest: str | None
    """The address of the first page, if this is another one."""
    older: str | None
    """The address of the next page, if there may be more."""
    looked_at: int | None
    """How many jobs were looked at, if the search has stopped there."""


def listed(store: Store, asked: Asked, now: datetime, path: str, limit: int = PAGE) -> Listed:
    try:
        found = store.find_jobs(asked.filter(now), before=asked.before, limit=limit)
    except ValueError as error:
        raise BadRequest(f"before: {error}") from None
    return Listed(
        [*found.jobs],
        newest=None if asked.before is None else asked.address(path, None),
        older=None if found.next is None else asked.address(path, found.next),
        looked_at=None if found.complete else found.searched,
    )


def _seconds(text: str) -> float | None:
    try:
        return parse_duration(text)
    except ValueError:
        return None


def _microseconds(text: str | None, now: datetime) -> int | None:
    if text is None:
        return None
    at = parsed(text)
    if at is None:
        at = now - timedelta(seconds=_seconds(text) or 0.0)
    return round(at.timestamp() * 1_000_000)
