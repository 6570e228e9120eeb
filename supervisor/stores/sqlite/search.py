"""Find jobs of a SQLite store by a filter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from supervisor.stores.codes import (
    BLOCKED,
    CODES,
    DEAD_LETTER_CODES,
    FAILED,
    IN_FLIGHT,
    PENDING,
    READY,
    SCHEDULED,
    SUCCEEDED,
)
from supervisor.stores.limits import MAX_TIME
from supervisor.stores.records import Place, readable_attempt
from supervisor.stores.search import CLOCK_STEP, FailureGroup, IdRange, JobFilter, SearchLimits, Walk, has_error
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.texts import HEADERS, PAYLOAD

INDEXES = {BLOCKED: "blocked", READY: "ready", SCHEDULED: "scheduled", IN_FLIGHT: "in_flight"}
CREATED_AT = "select created_at from jobs where id >= ? order by id limit 1"
LAST_ID = "select coalesce(max(id), 0) from jobs"
COUNT = "select coalesce(sum(n), 0) from counts where state = ?1 and (?2 is null or queue = ?2)"
COUNT_PENDING = f"select count(*) from (select 1 from dead_letters where state = {PENDING} limit ?)"
# The text of all attempts of a job; the text that is searched for is ?2, and ?3 as a string in JSON has it.
WITH_TEXT = Select(
    """id, length(texts) + length(errors),
      instr(lower(texts), lower(?2)) > 0 or instr(lower(errors), lower(?2)) > 0
        or (?3 != ?2 and instr(lower(errors), lower(?3)) > 0)""",
    f"""from (
      select jobs.id as id, {PAYLOAD} || char(10) || coalesce({HEADERS}, '') as texts,
        coalesce((select group_concat(cast(record as text), char(10)) from attempts where job_id = jobs.id), '') as errors
      from json_each(?1) as it cross join jobs on jobs.id = it.value)""",
)
# With `max`, SQLite takes the other columns from the row that has the maximum.
FAILURES = Select(
    "handler, n, last_at, id",
    f"""from (
      select handler, count(*) as n, max(finished_at) as last_at, its.id as id, iif(json_valid(record), record, '{{}}') as known
      from (
        select id, handler, finished_at from jobs where state = {FAILED} and state >= {SUCCEEDED}
        order by finished_at desc, id desc limit ?) as its
      left join attempts on attempts.id = (select max(id) from attempts where job_id = its.id)
      group by handler, json_extract(known, '$.type'), json_extract(known, '$.cause')
      order by n desc, last_at desc limit ?)""",
)

HEADERS_OF = Select(f"jobs.id, {HEADERS}", "from json_each(?) as it cross join jobs on jobs.id = it.value")
LAST_ATTEMPTS = Select(
    "job_id, cast(record as text)",
    """from json_each(?) as it cross join attempts
      on attempts.id = (select max(id) from attempts where job_id = it.value)""",
)


class Candidates(NamedTuple):
    """A query for the ids of jobs to be looked at, in order, with the first part of their place as `at`."""

    sql: str
    parameters: list[Any]


class Search:
    """Implements `supervisor.stores.search.Source`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def last_id(self) -> int:
        return int(self._connection.value(LAST_ID))

    def created_at(self, id: int) -> int | None:
        created_at: int | None = self._connection.value(CREATED_AT, id)
        return created_at

    def walk(self, where: JobFilter, ids: IdRange, after: Place | None, limit: int, limits: SearchLimits) -> Walk:
        looked = self._candidates(where, ids, after, limits)
        sql, parameters = passing(where, looked)
        found = self._connection.json(
            f"select json_group_array(json_array(at, id)) from ({sql} limit ?)", *parameters, limit
        )
        places = [(at, id) for at, id in found]
        if len(places) == limit:
            return Walk(places)
        last = f"select json_group_array(json_array(at, id)) from (select at, id from ({looked.sql}) limit 1 offset ?)"
        stopped = [(at, id) for at, id in self._connection.json(last, *looked.parameters, limits.looked - 1)]
        return Walk(places, stopped[0] if stopped else None)

    def with_text(self, ids: Sequence[int], text: str) -> tuple[Collection[int], int]:
        rows = self._connection.rows(WITH_TEXT, packed(ids), text, packed(text)[1:-1])
        return {id for id, _, has in rows if has}, sum(length for _, length, _ in rows)

    def with_error(self, ids: Sequence[int], text: str) -> tuple[Collection[int], int]:
        rows = self._connection.rows(LAST_ATTEMPTS, packed(ids))
        return {id for id, record in rows if has_error(readable_attempt(record), text)}, sum(len(it) for _, it in rows)

    def headers(self, ids: Sequence[int]) -> list[tuple[int, str]]:
        return [(id, text) for id, text in self._connection.rows(HEADERS_OF, packed(ids)) if text is not None]

    def failures(self, limit: int, among: int) -> list[FailureGroup]:
        return [FailureGroup(*row) for row in self._connection.rows(FAILURES, among, limit)]

    def _candidates(self, where: JobFilter, ids: IdRange, after: Place | None, limits: SearchLimits) -> Candidates:
        if where.by_finish:
            return by_finish(where, after, limits.looked)
        last = ids.last if after is None else min(ids.last, after[1] - 1)
        return by_id(where, self._are_few(where, limits.few), IdRange(ids.first, last), limits.looked)

    def _are_few(self, where: JobFilter, few: int) -> bool:
        """Return whether an index has few jobs with this state, or dead letter."""
        if where.tag is not None:
            return False
        if where.dead_letter is not None:
            return where.dead_letter == "pending" and self._connection.value(COUNT_PENDING, few + 1) <= few
        if where.state is None or where.state.terminal:
            return False
        code = CODES[where.state]
        return bool(self._connection.value(COUNT, code, where.queue if code == READY else None) <= few)


def by_finish(where: JobFilter, after: Place | None, looked: int) -> Candidates:
    """Of jobs that have ended, those that finished last first."""
    assert where.state is not None
    conditions = f"state = {CODES[where.state]} and state >= {SUCCEEDED}"
    parameters: list[Any] = []
    if after is not None:
        conditions += " and (finished_at, id) < (?, ?)"
        parameters += after
    if where.since is not None:  # none has finished before it was created
        conditions += " and finished_at >= ?"
        parameters.append(where.since - CLOCK_STEP)
    return Candidates(
        f"""select coalesce(finished_at, {-MAX_TIME}) as at, id from jobs where {conditions}
          order by finished_at desc, id desc limit ?""",
        [*parameters, looked],
    )


def by_id(where: JobFilter, few: bool, ids: IdRange, looked: int) -> Candidates:
    """Jobs with the highest ids first. A `+` prevents SQLite from using the order of the ids instead of the index of a state."""
    parameters: list[Any] = []
    if where.tag is not None:
        source, id = "job_tags where tag = ? and", "job_id"
        parameters.append(where.tag)
    elif where.dead_letter is not None:
        source = (
            f"dead_letters indexed by pending_dead_letters where state = {PENDING} and" if few else "dead_letters where"
        )
        id = "job_id"
    elif few and where.state is not None:
        code, id = CODES[where.state], "id"
        source = f"jobs indexed by {INDEXES[code]} where state = {code} and"
        if code == READY and where.queue is not None:
            source += " queue = ? and"
            parameters.append(where.queue)
    else:
        source, id = "jobs where", "id"
    sorted = "+" if few else ""
    return Candidates(
        f"select 0 as at, {id} as id from {source} {sorted}{id} between ? and ? order by {sorted}{id} desc limit ?",
        [*parameters, *ids, looked],
    )


def passing(where: JobFilter, candidates: Candidates) -> tuple[str, list[Any]]:
    """Return the query for those of the candidates that pass the filter but for its text, in the order of the candidates, which
    SQLite keeps since it has no reason to sort them."""
    conditions = [] if where.state is None or where.by_finish else [f"jobs.state = {CODES[where.state]}"]
    parameters: list[Any] = []
    for condition, value in (
        ("jobs.queue = ?", where.queue), ("jobs.handler = ?", where.handler),
        ("jobs.created_at >= ?", where.since), ("jobs.created_at < ?", where.until),
    ):  # fmt: skip
        if value is not None:
            conditions.append(condition)
            parameters.append(value)
    source = f"({candidates.sql}) as it"
    if conditions:
        source += " cross join jobs on jobs.id = it.id"
    if where.dead_letter is not None:
        codes = ", ".join(map(str, DEAD_LETTER_CODES[where.dead_letter]))
        source += f" cross join dead_letters on dead_letters.job_id = it.id and dead_letters.state in ({codes})"
    if where.sink is not None:
        conditions.append("instr(owed, ?) > 0 and instr(accepted, ?) = 0")
        parameters += [packed(where.sink)] * 2
    return (
        f"select at, it.id as id from {source} where {' and '.join(conditions) or 'true'}",
        [*candidates.parameters, *parameters],
    )
