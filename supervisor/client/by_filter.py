"""The calls of a client that change all jobs that match a filter."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypedDict, TypeVar, Unpack

from supervisor.jobs import JobState
from supervisor.stores.by_filter import COMMANDS, DEAD_LETTER_STATES, Ask, change_all, find_all
from supervisor.stores.search import JobFilter, header_of, searched_text
from supervisor.text.names import NAME, did_you_mean_or_all, is_name
from supervisor.text.units import microseconds_of, parse_moment

if TYPE_CHECKING:
    from supervisor.stores.protocol import Store

Number = TypeVar("Number")
Answer = TypeVar("Answer")


class Filter(TypedDict, total=False):
    """The jobs with these values. `since` and `until` are aware datetimes, or text: a time in ISO 8601, or how long ago ("2h").
    `header` is text such as "tenant=7"."""

    queue: str
    handler: str
    state: str
    tag: str
    header: str
    error: str
    since: datetime | str
    until: datetime | str


class Change(NamedTuple):
    """A command of `stores.by_filter`, the jobs that it is for, and how to change them."""

    command: str
    where: JobFilter
    limit: int | None
    force: bool
    dry_run: bool

    def run(self, ask: Ask) -> int:
        """Change the jobs, and return how many were changed, or would be."""
        command = COMMANDS[self.command]
        found = find_all(ask, command, self.where, self.limit, force=self.force)
        if self.dry_run:
            return len(found.changeable)
        return change_all(ask, command, self.where, found, force=self.force).changed


class ByFilter(ABC, Generic[Number]):
    """The calls for many jobs. Each takes the arguments of Filter, at least one, and returns how many jobs it has changed, or
    with `dry_run` would change; `limit` is the most, the newest. `Number` is int, or a coroutine that returns it.

    They find the jobs first, and change them in batches, with a commit for each: if one raises StoreError, some may be changed. Jobs
    that leave the state in which they were found are left alone. A wrong argument raises ValueError.
    """

    @abstractmethod
    def _change_jobs(self, change: Change) -> Number: ...

    def cancel_jobs(self, *, limit: int | None = None, dry_run: bool = False, **where: Unpack[Filter]) -> Number:
        """Cancel jobs that have not ended. The workers of running ones are killed."""
        return self._change_jobs(_change("cancel", where, limit, False, dry_run))

    def retry_jobs(
        self, *, limit: int | None = None, force: bool = False, dry_run: bool = False, **where: Unpack[Filter]
    ) -> Number:
        """Run failed jobs again, or with a `state` those in that one: scheduled jobs are due now. `force` includes jobs with a pending
        dead letter, and is needed for succeeded ones."""
        return self._change_jobs(_change("retry", where, limit, force, dry_run))

    def delete_jobs(
        self, *, limit: int | None = None, force: bool = False, dry_run: bool = False, **where: Unpack[Filter]
    ) -> Number:
        """Delete jobs that do not run. `force` includes those with a pending dead letter."""
        return self._change_jobs(_change("delete", where, limit, force, dry_run))

    def redrive_dead_letters(
        self, *, limit: int | None = None, force: bool = False, dry_run: bool = False, **where: Unpack[Filter]
    ) -> Number:
        """Run dead letters again; `state` is "delivered" or "pending". `force` includes pending ones."""
        return self._change_jobs(_change("redrive", where, limit, force, dry_run))

    def purge_dead_letters(
        self, *, limit: int | None = None, force: bool = False, dry_run: bool = False, **where: Unpack[Filter]
    ) -> Number:
        """Delete dead letters; `state` is "delivered" or "pending". `force` includes pending ones."""
        return self._change_jobs(_change("purge", where, limit, force, dry_run))


class ChangesJobs(ByFilter[int]):
    @abstractmethod
    def _ask(self, question: Callable[[Store], Answer]) -> Answer: ...

    def _change_jobs(self, change: Change) -> int:
        return change.run(self._ask)


def _change(command: str, given: Mapping[str, Any], limit: int | None, force: bool, dry_run: bool) -> Change:
    for name in given:
        if name not in Filter.__annotations__:
            raise TypeError(f"unexpected argument {name!r}{did_you_mean_or_all(name, Filter.__annotations__)}")
    values = {name: value for name, value in given.items() if value is not None}
    if not values:
        raise ValueError("expected a filter: at least one of " + ", ".join(Filter.__annotations__))
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"limit: expected a whole number of at least 1, got {limit!r}")
    return Change(command, _where(command, values), limit, force, dry_run)


def _where(command: str, values: dict[str, Any]) -> JobFilter:
    for name in ("queue", "handler", "tag"):
        if name in values and not is_name(values[name]):
            raise ValueError(f"{name}: expected {NAME}, got {values[name]!r}")
    if "error" in values:
        _check_error(values["error"])
    if "header" in values:
        values["header"] = _header(values["header"])
    moments: dict[str, Any] = {name: _moment(name, values.pop(name)) for name in ("since", "until") if name in values}
    state = values.pop("state", None)
    if COMMANDS[command].of_dead_letters:
        return JobFilter(**values, **moments, dead_letter=_one_of(DEAD_LETTER_STATES, state))
    known = _one_of([it.value for it in COMMANDS[command].states], state)
    return JobFilter(**values, **moments, state=None if known is None else JobState(known))


def _check_error(value: Any) -> None:
    try:
        searched_text(value)
    except ValueError as error:
        raise ValueError(f"error: {error}") from None


def _header(value: Any) -> tuple[str, str]:
    try:
        return header_of(value)
    except (ValueError, AttributeError):
        raise ValueError(f"header: expected NAME=VALUE, got {value!r}") from None


def _one_of(states: Any, state: Any) -> str | None:
    if state is not None and state not in states:
        raise ValueError(f"state: expected one of {', '.join(states)}, got {state!r}")
    return None if state is None else str(state)


def _moment(name: str, value: Any) -> int:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return microseconds_of(value)
    try:
        return parse_moment(value, time.time())
    except ValueError as error:
        raise ValueError(f"{name}: {error}, got {value!r}") from None
