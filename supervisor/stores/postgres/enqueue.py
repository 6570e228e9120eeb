"""Enqueue jobs in PostgreSQL: one by a statement, some by the function `put`, many by `copy`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from supervisor.errors import StoreContended, StoreUnsure
from supervisor.stores.codes import READY, SCHEDULED
from supervisor.stores.extras import extras_text
from supervisor.stores.postgres.connection import NOTIFY, NOW, CommitUnknown, Connection, packed
from supervisor.stores.postgres.counts import Counts
from supervisor.stores.postgres.driver import LOCK_TIMEOUT
from supervisor.stores.records import EnqueueBatch, EnqueueRow, microseconds, options_text
from supervisor.stores.unique import decoded_ids, naming_no_new_job

MIN_COPIED = 200
"""The number of rows from which on `copy` is faster than one statement."""
ROWS_OF_A_WRITE = 1_000
CHARACTERS_OF_A_ROW = 200
"""An estimate for a row without its payload and headers."""

# It is faster than `put` for one row, and most programs enqueue one by one. In a queue where groups take turns it enqueues nothing.
ENQUEUE_ONE = f"""
  with job as (
    insert into {{s}}.jobs(id, age, handler, queue, payload, headers, priority, options, due_at, created_at, state)
    overriding system value
    select id, id, $2, $3, $4, $5, $6, $7, due, now, case when due > now then {SCHEDULED} else {READY} end
    from (
      select id, now, coalesce(now + $8::bigint, $9::bigint, now) as due
      from (
        select nextval($1::regclass) as id, {NOW} as now
        where not exists (select from {{s}}.turns where queue = $3 and priority = $6)) as it) as it
    returning id, state),
  counted as (
    insert into {{s}}.counts(state, queue, tier, n) select state, $3, 0, 1 from job)
  select id, {NOTIFY} from job"""
PUT = "select {s}.put($1)"
TAKE_TURNS = "select exists (select from {s}.turns where queue = any($1::text[]))"
FIND_SEQUENCE = "select case when has_table_privilege({jobs}, 'insert') then pg_get_serial_sequence({jobs}, 'id') end"
"""The sequence of the ids; null for a role that may enqueue by `put` only."""

RESERVE = "select nextval((select pg_get_serial_sequence({jobs}, 'id')::regclass)) from generate_series(1, $1)"
RESERVE_RUN = f"""
  select {NOW}, min(id), max(id)
  from (select nextval((select pg_get_serial_sequence({{jobs}}, 'id')::regclass)) from generate_series(1, $1)) as it(id)"""
# It runs before ids are taken: a transfer into this store, which locks the table, may insert jobs with the same ids.
ENTER = "lock table {s}.jobs in row exclusive mode"
COPY = """
  copy {s}.jobs(id, age, handler, queue, headers, priority, options, due_at, created_at, state, payload) from stdin"""


class Enqueues:
    def __init__(self, connection: Connection, counts: Counts, sent_characters: int) -> None:
        self._connection, self._counts, self._sent_characters = connection, counts, sent_characters
        self._sequence: str | None = None
        self._knows_sequence = False

    def enqueue(self, rows: Sequence[EnqueueRow]) -> list[int]:
        if not rows:
            return []
        try:
            sequence = self._id_sequence()
            if len(rows) == 1 and sequence is not None and rows[0].extras is None:
                id = self._commit(ENQUEUE_ONE, sequence, *values_of(rows[0]).values())
                if id is not None:
                    return [id]
            parts = split_batch(rows, self._sent_characters)
            if sequence is not None and self._needs_put(EnqueueBatch.of(rows)):
                sequence = None
            if len(parts) == 1 and (len(rows) < MIN_COPIED or sequence is None):
                return decoded_ids(rows, self._commit(PUT, packed([values_of(row) for row in rows])))
            with self._connection.transaction():
                return self._put(parts) if sequence is None else self._copy(parts)
        except StoreContended as error:
            if (hint := _locked_hint(error, rows)) is None:
                raise
            raise StoreContended(f"{error}: {hint}") from error.__cause__
        except CommitUnknown as error:
            raise StoreUnsure(
                f"{error}; the jobs of this call may or may not have been enqueued: its commit was not answered"
            ) from error

    def _commit(self, sql: str, *parameters: Any) -> Any:
        if self._connection.commits_by_itself:
            with self._connection.committing():
                return self._connection.value(sql, *parameters)
        with self._connection.transaction():
            return self._connection.value(sql, *parameters)

    def _needs_put(self, rows: EnqueueBatch) -> bool:
        """Return whether some of these jobs are related to others, or are many in a queue where groups take turns."""
        if any(kind.extras is not None for kind in rows.kinds):
            return True
        return len(rows) >= MIN_COPIED and self._connection.value(TAKE_TURNS, list({kind.queue for kind in rows.kinds}))

    def _id_sequence(self) -> str | None:
        if not self._knows_sequence:
            self._sequence = self._connection.value(FIND_SEQUENCE)
            self._knows_sequence = True
        return self._sequence

    def _put(self, parts: Sequence[EnqueueBatch]) -> list[int]:
        ids: list[int] = []
        with naming_no_new_job(ids):
            for part in parts:
                ids += decoded_ids(
                    part, self._connection.value(PUT, packed([values_of(row) for row in in_part(part, ids)]))
                )
        return ids

    def _copy(self, parts: Sequence[EnqueueBatch]) -> list[int]:
        ids: list[int] = []
        self._connection.later(ENTER)
        for part in parts:
            now, own = self._reserve(len(part))
            ids += own
            with self._connection.copy(COPY) as copy:
                for start in range(0, len(part), ROWS_OF_A_WRITE):
                    end = start + ROWS_OF_A_WRITE
                    copy.write(_lines(part[start:end], own[start:end], now).encode())
            for place, n in Counter(part.places).items():
                kind = part.kinds[place]
                self._counts.add(SCHEDULED if _due(kind, now) > now else READY, kind.queue, 0, n)
        self._connection.later(f"select {NOTIFY}")
        return ids

    def _reserve(self, n: int) -> tuple[int, Sequence[int]]:
        """Return the time and `n` ids, which are consecutive unless another session took some in between."""
        now, first, last = self._connection.rows(RESERVE_RUN, n)[0]
        if last - first == n - 1:
            return now, range(first, last + 1)
        return now, reserve_ids(self._connection, n)


def _locked_hint(error: StoreContended, rows: Iterable[EnqueueRow]) -> str | None:
    """Return which lock the enqueue of these rows has waited for in vain, as far as they show it, and what to do."""
    if getattr(error.__cause__, "sqlstate", None) != LOCK_TIMEOUT:
        return None
    for name, what in (("unique", "unique key"), ("key", "key")):
        keys = {getattr(row.extras, name) for row in rows} - {None}
        if keys:
            its = f"the {what} {min(keys)!r}" if len(keys) == 1 else f"one of {len(keys):,} {what}s"
            return (
                f"another session has an open transaction that has probably enqueued a job with {its}: commit it or roll it back "
                "(pg_stat_activity shows it), and enqueue again"
            )
    return None


def reserve_ids(connection: Connection, n: int) -> list[int]:
    """Return the next values of the id sequence, which are also ages behind all jobs that wait."""
    return sorted(connection.column(RESERVE, n))


def split_batch(rows: Sequence[EnqueueRow], characters: int) -> list[EnqueueBatch]:
    """Split the rows, in order, into batches of about `characters` at most, or of one row."""
    rows = EnqueueBatch.of(rows)
    parts: list[EnqueueBatch] = []
    start = total = 0
    around = [CHARACTERS_OF_A_ROW + len(kind.headers or "") for kind in rows.kinds]
    for at, (place, payload) in enumerate(zip(rows.places, rows.payloads, strict=True)):
        size = len(payload) + around[place]
        total += size
        if total > characters and at > start:
            parts.append(rows[start:at])
            start, total = at, size
    return [*parts, rows[start:]]


def in_part(part: Iterable[EnqueueRow], ids: Sequence[int]) -> Iterator[EnqueueRow]:
    """Yield the rows of this part of a batch: places in `after` become ids if they are in the parts before, which have these `ids`,
    and places in this part otherwise."""
    for row in part:
        if ids and row.extras is not None and row.extras.after:
            after = [
                it if it >= 0 else ids[-1 - it] if -1 - it < len(ids) else it + len(ids) for it in row.extras.after
            ]
            row = row._replace(extras=row.extras._replace(after=tuple(after)))
        yield row


def values_of(row: EnqueueRow) -> dict[str, Any]:
    """Return the values that `put` reads, in the order in which ENQUEUE_ONE takes them."""
    values = {
        "handler": row.handler,
        "queue": row.queue,
        "payload": row.payload,
        "headers": row.headers,
        "priority": row.priority,
        "options": options_text(row),
        "delay": microseconds(row.delay) if row.delay else None,
        "at": row.at,
    }
    return values if row.extras is None else {**values, "extras": orjson.Fragment(extras_text(row.extras))}


def _due(row: EnqueueRow, now: int) -> int:
    return now + microseconds(row.delay) if row.delay else now if row.at is None else row.at


def _lines(rows: EnqueueBatch, ids: Sequence[int], now: int) -> str:
    """Return the rows as `copy` reads them. The code is simple, since this is a hot path."""
    payloads = rows.payloads
    if not _is_plain("".join(payloads)):
        payloads = [_escaped(payload) for payload in payloads]
    heads = {place: _head(rows.kinds[place], now) for place in set(rows.places)}
    its = [heads[place] for place in rows.places]
    return "".join([f"{id}\t{id}\t{head}\t{payload}\n" for id, head, payload in zip(ids, its, payloads, strict=True)])


def _head(row: EnqueueRow, now: int) -> str:
    """Return the columns between the ids and the payload."""
    due = _due(row, now)
    state = SCHEDULED if due > now else READY
    handler, queue, headers, options = [
        "\\N" if text is None else _escaped(text) for text in (row.handler, row.queue, row.headers, options_text(row))
    ]
    return f"{handler}\t{queue}\t{headers}\t{row.priority}\t{options}\t{due}\t{now}\t{state}"


def _is_plain(text: str) -> bool:
    return not any(mark in text for mark in "\\\t\n\r")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
