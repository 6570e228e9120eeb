"""Find jobs of a PostgreSQL store by a filter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import orjson

from supervisor.stores.codes import CODES, DEAD_LETTER_CODES, FAILED, PENDING, READY, SUCCEEDED
from supervisor.stores.limits import MAX_TIME
from supervisor.stores.postgres.connection import Connection, array
from supervisor.stores.records import Place, readable_attempt
from supervisor.stores.search import CLOCK_STEP, FailureGroup, IdRange, JobFilter, SearchLimits, Walk, has_error

CREATED_AT = "select created_at from {s}.jobs where id >= $1 order by id limit 1"
LAST_ID = "select coalesce(max(id), 0) from {s}.jobs"
AT = f"coalesce(at, {MAX_TIME})"
"""The time at which a job has finished; one without it, which another program has made, is before all."""
COUNT = """
  select coalesce(sum(n), 0)::bigint from {s}.counts where state = $1 and ($2::text is null or queue = $2)"""
COUNT_PENDING = f"select count(*) from (select from {{s}}.dead_letters where state = {PENDING} limit $1) as its"
# The text that is searched for is $2, and $3 as a string in JSON has it. In the collation "C", only A to Z have two cases.
WITH_TEXT = """
  select id, length(texts) + length(errors), position(lower($2 collate "C") in lower(texts collate "C")) > 0
    or position(lower($2 collate "C") in lower(errors collate "C")) > 0
    or ($3 != $2 and position(lower($3 collate "C") in lower(errors collate "C")) > 0)
  from (
    select jobs.id, coalesce(payload, '') || chr(10) || coalesce(headers, '') as texts,
      coalesce((select string_agg(record, chr(10)) from {s}.attempts where job_id = jobs.id), '') as errors
    from unnest($1::bigint[]) as it(id) join {s}.jobs on jobs.id = it.id offset 0) as its"""
# A record may be text that is no JSON, if another program has put it there. In the store's own, `cause` and `type` stand first.
FAILURES = rf"""
  select handler, count(*), max(finished_at), (array_agg(its.id order by finished_at desc, its.id desc))[1]
  from (
    select id, handler, finished_at from {{s}}.jobs where state = {FAILED} and state >= {SUCCEEDED}
    order by finished_at desc, id desc limit $1) as its
  left join lateral (
    select left(record, 1000) as record from {{s}}.attempts where job_id = its.id order by attempts.id desc limit 1) as last on true
  group by handler, substring(record from '"type": ?"((?:[^"\\]|\\.)*)"'), substring(record from '"cause": ?"((?:[^"\\]|\\.)*)"')
  order by count(*) desc, max(finished_at) desc limit $2"""

HEADERS_OF = "select id, headers from {s}.jobs where id = any($1::bigint[]) and headers is not null"
LAST_ATTEMPTS = """
  select last.* from unnest($1::bigint[]) as it(id) cross join lateral (
    select job_id, at, record from {s}.attempts where job_id = it.id order by id desc limit 1) as last"""


class Query(NamedTuple):
    sql: str
    parameters: list[Any]

    def add(self, value: Any) -> str:
        """Add a parameter, and return the text that stands for it."""
        self.parameters.append(value)
        return f"${len(self.parameters)}::{'bigint' if isinstance(value, int) else 'text'}"


class Search:
    """Implements `supervisor.stores.search.Source`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def last_id(self) -> int:
        return int(self._connection.value(LAST_ID))

    def created_at(self, id: int) -> int | None:
        created_at: list[int] = self._connection.column(CREATED_AT, id)
        return created_at[0] if created_at else None

    def walk(self, where: JobFilter, ids: IdRange, after: Place | None, limit: int, limits: SearchLimits) -> Walk:
        looked = self._candidates(where, ids, after, limits)
        places = [(at, id) for at, id in self._rows(passing(where, looked, limit))]
        if len(places) == limit:
            return Walk(places)
        last = Query(looked.sql, [*looked.parameters])
        last = last._replace(
            sql=f"select {AT}, id from ({looked.sql}) as it limit 1 offset {last.add(limits.looked - 1)}"
        )
        stopped = [(at, id) for at, id in self._rows(last)]
        return Walk(places, stopped[0] if stopped else None)

    def with_text(self, ids: Sequence[int], text: str) -> tuple[Collection[int], int]:
        quoted = orjson.dumps(text).decode()[1:-1]
        rows = list(self._connection.rows(WITH_TEXT, array(ids), text, quoted))
        return {id for id, _, has in rows if has}, sum(length for _, length, _ in rows)

    def with_error(self, ids: Sequence[int], text: str) -> tuple[Collection[int], int]:
        rows = list(self._connection.rows(LAST_ATTEMPTS, array(ids)))
        matching = {id for id, at, record in rows if has_error(readable_attempt(record, at), text)}
        return matching, sum(len(record) for *_, record in rows)

    def headers(self, ids: Sequence[int]) -> list[tuple[int, str]]:
        return [(id, text) for id, text in self._connection.rows(HEADERS_OF, array(ids))]

    def failures(self, limit: int, among: int) -> list[FailureGroup]:
        return [FailureGroup(*row) for row in self._connection.rows(FAILURES, among, limit)]

    def _rows(self, query: Query) -> list[Any]:
        return list(self._connection.rows(query.sql, *query.parameters))

    def _candidates(self, where: JobFilter, ids: IdRange, after: Place | None, limits: SearchLimits) -> Query:
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


def by_finish(where: JobFilter, after: Place | None, looked: int) -> Query:
    """Of jobs that have ended, those that finished last first."""
    assert where.state is not None
    query = Query("", [])
    conditions = f"state = {CODES[where.state]} and state >= {SUCCEEDED}"
    if after is not None:
        conditions += f" and (finished_at, id) < ({query.add(after[0])}, {query.add(after[1])})"
    if where.since is not None:  # none has finished before it was created
        conditions += f" and finished_at >= {query.add(where.since - CLOCK_STEP)}"
    return query._replace(
        sql=f"""select finished_at as at, id from {{s}}.jobs where {conditions}
          order by finished_at desc, id desc limit {query.add(looked)}"""
    )


def by_id(where: JobFilter, few: bool, ids: IdRange, looked: int) -> Query:
    """Jobs with the highest ids first. An `offset 0` prevents the use of the order of the ids instead of the index of a state."""
    query = Query("", [])
    if where.tag is not None:
        source = f"(select job_id as id from {{s}}.job_tags where tag = {query.add(where.tag)})"
    elif where.dead_letter is not None:
        pending = f"(select job_id as id from {{s}}.dead_letters where state = {PENDING} offset 0)"
        source = pending if few else "(select job_id as id from {s}.dead_letters)"
    elif few and where.state is not None:
        queue = "" if where.queue is None else f" and queue = {query.add(where.queue)}"
        source = f"(select id from {{s}}.jobs where state = {CODES[where.state]}{queue} offset 0)"
    else:
        source = "{s}.jobs"
    between = f"between {query.add(ids.first)} and {query.add(ids.last)}"
    return query._replace(
        sql=f"""select 0::bigint as at, id from {source} as its where id {between}
          order by id desc limit {query.add(looked)}"""
    )


def passing(where: JobFilter, candidates: Query, limit: int) -> Query:
    """Return the query for the first of the candidates that pass the filter but for its text. They are in this order already: it
    looks up one after the other, as an `offset 0` demands, and no more than it needs."""
    query = Query("", [*candidates.parameters])
    conditions = [] if where.state is None or where.by_finish else [f"jobs.state = {CODES[where.state]}"]
    for condition, value in (
        ("jobs.queue =", where.queue), ("jobs.handler =", where.handler),
        ("jobs.created_at >=", where.since), ("jobs.created_at <", where.until),
    ):  # fmt: skip
        if value is not None:
            conditions.append(f"{condition} {query.add(value)}")
    source = f"({candidates.sql}) as it"
    if conditions:
        its = f"select from {{s}}.jobs where jobs.id = it.id and {' and '.join(conditions)} offset 0"
        source += f" cross join lateral ({its}) as j"
    if where.dead_letter is not None:
        codes = ", ".join(map(str, DEAD_LETTER_CODES[where.dead_letter]))
        waits = ""
        if where.sink is not None:
            sink = query.add(orjson.dumps(where.sink).decode())
            waits = f" and position({sink} in owed) > 0 and position({sink} in accepted) = 0"
        its = f"select from {{s}}.dead_letters where job_id = it.id and dead_letters.state in ({codes}){waits} offset 0"
        source += f" cross join lateral ({its}) as d"
    order = "at desc, it.id desc" if where.by_finish else "it.id desc"
    return query._replace(sql=f"select {AT}, it.id from {source} order by {order} limit {query.add(limit)}")
