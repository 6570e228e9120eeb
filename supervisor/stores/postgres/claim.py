"""From enqueue to claim in PostgreSQL. One statement per batch and step; every read goes through a partial index."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from supervisor.errors import StoreError, StoreUnsure
from supervisor.jobs import Lease, Policy
from supervisor.stores.codes import IN_FLIGHT, READY, SCHEDULED
from supervisor.stores.counts import waiting_of
from supervisor.stores.postgres.claim_cursor import ClaimCursors
from supervisor.stores.postgres.connection import CommitUnknown, array, packed
from supervisor.stores.postgres.row_locks import Locks
from supervisor.stores.records import (
    ClaimRequest,
    EnqueueBatch,
    EnqueueRow,
    Look,
    Resolve,
    Waiting,
    by_queue_and_tier,
    microseconds,
    options_text,
    overlaid,
    policy_of,
    policy_text,
)

COPIED_FROM = 200  # rows; below, one statement is faster
SENT_AT_ONCE = 4_000_000  # characters: what a slow line takes within the limit of a call
FOLDED_FROM = 100  # rows of counts more than need be
FOLDED_AT_ONCE = 20_000
CLAIM_LENGTH = 16_000_000  # of the texts of one claim
FEW = 16
FEW_HANDLERS = 64
LIGHT_OF_FEW = CLAIM_LENGTH // FEW
LOCKED_AGAIN = 1_000_000  # microseconds to the next look at what is due and locked by others
ALL = -(2**63)  # no priority and no age is below
LIGHT = 4096  # what is longer is not read with the other candidates

NOW = "(select {s}.clock())"
LENGTH = "coalesce(octet_length(payload), 0) + coalesce(octet_length(headers), 0)"
TEXTS_OF_LEASE = "coalesce(payload, ''), headers"
LEASE = f"""id, token, handler, queue, {TEXTS_OF_LEASE}, retries, priority, tier, due_at, created_at, policy, options"""

ENQUEUE = f"""with put as (
    insert into {{s}}.jobs(id, age, handler, queue, payload, headers, priority, options, due_at, created_at, state)
    select id, id, handler, queue, payload, headers, priority, options, due, now, case when due > now then {SCHEDULED} else {READY} end
    from (select it.*, nextval((select pg_get_serial_sequence($2, 'id')::regclass)) as id, {NOW} as now, coalesce({NOW} + delay, at, {NOW}) as due
      from rows from (json_to_recordset($1::json) as (handler text, queue text, payload text, headers text, priority bigint,
        options text, delay bigint, at bigint)) with ordinality
        as it(handler, queue, payload, headers, priority, options, delay, at, place) order by place) as it
    returning id, queue, state),
  counted as (insert into {{s}}.counts(state, queue, tier, n) select state, queue, 0, count(*) from put group by state, queue)
  select id, pg_notify($3, '') from put order by id"""
ENQUEUE_ONE = f"""with put as (
    insert into {{s}}.jobs(id, age, handler, queue, payload, headers, priority, options, due_at, created_at, state)
    select id, id, $3, $4, $5, $6, $7, $8, due, now, case when due > now then {SCHEDULED} else {READY} end
    from (select id, now, coalesce(now + $9::bigint, $10::bigint, now) as due
      from (select nextval($1::regclass) as id, {NOW} as now) as it) as it
    returning id, state),
  counted as (insert into {{s}}.counts(state, queue, tier, n) select state, $4, 0, 1 from put)
  select id, pg_notify($2, '') from put"""
SEQUENCE = "select pg_get_serial_sequence($1, 'id')"
RESERVE = "select nextval((select pg_get_serial_sequence($1, 'id')::regclass)) from generate_series(1, $2)"
RESERVE_RUN = f"select {NOW}, min(id), max(id) from ({RESERVE}) as it(id)"
COPY = """copy {s}.jobs(id, age, handler, queue, headers, priority, options, due_at, created_at, state, payload)
  from stdin"""

PROMOTE = f"""with due as materialized (select id, queue, tier from {{s}}.jobs
    where state = {SCHEDULED} and due_at <= {NOW} order by due_at, id limit $1 for no key update skip locked)
  update {{s}}.jobs set state = {READY} from due where jobs.id = due.id returning due.queue, due.tier"""

UNPAUSED = "queue not in (select queue from {s}.queues where paused)"
CLAIMABLE = f"""select queue, tier, sum(n)::bigint from {{s}}.counts where state = {READY} and {UNPAUSED}
  group by queue, tier having sum(n) > 0"""
NEXT_DUE = f"select min(due_at) - {NOW} from {{s}}.jobs where state = {SCHEDULED}"
DUE_LATER = f"{NEXT_DUE} and due_at > {NOW}"
LOOK = f"""select null, 0::smallint, (select count(*) from {{s}}.counts), ({NEXT_DUE}) union all {CLAIMABLE.replace("sum(n)::bigint", "sum(n)::bigint, null::bigint")}"""
# Whoever folds takes rows that nobody else holds, so two may do it at once and neither waits.
FOLD = """with folded as materialized (delete from {s}.counts where ctid = any(array(
    select ctid from {s}.counts limit $1 for update skip locked)) returning state, queue, tier, n)
  insert into {s}.counts(state, queue, tier, n)
    select state, queue, tier, sum(n) from folded group by state, queue, tier having sum(n) != 0"""


def _candidates(tier: int, where: str, limit: str) -> str:
    return f"""(select {LEASE_LIGHT} from {{s}}.jobs
    where state = {READY} and queue = $1 and tier = {tier} and {where} and (select yes from open)
    order by priority desc, age, id limit greatest(0, {limit}) for no key update skip locked)"""


def _few(where: str, limit: str) -> str:
    return f"""(select id, handler, {LENGTH} as length from {{s}}.jobs
    where state = {READY} and queue = $1 and tier = 0 and {where} and (select yes from open)
    order by priority desc, age, id limit {limit} for no key update skip locked)"""


LEASE_LIGHT = f"""id, token, handler, queue, case when {LENGTH} <= {LIGHT} then coalesce(payload, '') end as payload,
  case when {LENGTH} <= {LIGHT} then headers end as headers, retries, priority, tier, due_at, created_at, options,
  age"""
_FIRST = "least($3, $4, $2 - (select count(*) from urgent))"
_REST = "$2 - (select count(*) from urgent) - (select count(*) from first)"
_BEGIN = f"""with open as materialized (
    select not exists (select 1 from {{s}}.queues where queue = $1 and paused) as yes),
  urgent as materialized {_candidates(0, "priority >= $5", "$2")},
  first as materialized {_candidates(1, "true", _FIRST)}"""
_PICKED = """select id, token + 1, handler, queue, payload, headers, retries, priority, tier, due_at, created_at, null::text,
    options, age
  from ("""


def _fill(*fresh: str) -> str:
    """Retries in the room that the fresh ones have left."""
    left = " - ".join([_REST, *(f"(select count(*) from {part})" for part in fresh)])
    limit = f"least($4 - (select count(*) from first), {left})"
    return f"more as materialized {_candidates(1, 'id <> all(array(select id from first))', limit)}"


def _union(*parts: str) -> str:
    selects = [f"select {place} as part, * from {part}" for place, part in enumerate(parts)]
    return f"{_PICKED}{' union all '.join(selects)}) as picked order by part, priority desc, age, id"


# As Take has it: urgent, then retries that go first, then fresh, then retries to fill up. Nothing is locked that is not given.
CANDIDATES = f"""{_BEGIN},
  fresh as materialized {_candidates(0, "priority < $5", _REST)},
  {_fill("fresh")}
  {_union("urgent", "first", "fresh", "more")}"""
# The same, but for what is of priority $6 and of an age below $7.
CANDIDATES_FROM = f"""{_BEGIN},
  above as materialized {_candidates(0, "priority < $5 and priority > $6", _REST)},
  there as materialized {_candidates(0, "priority = $6 and age >= $7", f"{_REST} - (select count(*) from above)")},
  below as materialized {
    _candidates(0, "priority < $6", f"{_REST} - (select count(*) from above) - (select count(*) from there)")
},
  {_fill("above", "there", "below")}
  {_union("urgent", "first", "above", "there", "below", "more")}"""
CLAIM = f"""update {{s}}.jobs set state = {IN_FLIGHT}, token = token + 1, owner = $1, lease_until = {NOW} + $2,
    started_at = null, policy = $3
  where id = any($4::bigint[])"""
# A few fresh jobs that are light and of handlers whose policy is known ($7, by handler), in one statement; none if one is not.
CLAIM_FEW = f"""with open as materialized (
    select not exists (select 1 from {{s}}.queues where queue = $1 and paused) as yes),
  above as materialized {_few("priority > $3", "$2")},
  there as materialized {_few("priority = $3 and age >= $4", "$2 - (select count(*) from above)")},
  picked as materialized (select * from above union all select * from there),
  moved as (update {{s}}.jobs set state = {IN_FLIGHT}, token = token + 1, owner = $5, lease_until = {NOW} + $6,
      started_at = null, policy = $7::json ->> handler
    where id = any(array(select id from picked))
      and not exists (select 1 from picked where length > {LIGHT_OF_FEW} or $7::json ->> handler is null)
    returning {LEASE}, age),
  counted as (insert into {{s}}.counts(state, queue, tier, n) select state, $1, 0, sign * n
    from (select count(*) as n from moved) as it, (values ({READY}, -1), ({IN_FLIGHT}, 1)) as way(state, sign) where n > 0)
  select * from moved order by priority desc, age, id"""
LENGTHS = f"""select {LENGTH} from unnest($1::bigint[]) with ordinality as it(id, place) join {{s}}.jobs using (id)
  order by place"""
TEXTS = LENGTHS.replace(LENGTH, "coalesce(payload, ''), headers")


class Claims(Locks):
    """`owner_id` is the row of `supervisors` that claims are made for; None until the store has joined."""

    owner_id: int | None = None
    _ready: Mapping[str, int] = MappingProxyType({})
    """By queue, at the last look."""
    _resolve: Resolve | None = None
    _resolved: dict[tuple[str, str], str]  # policies by (handler, queue), as the last `resolve` had it
    _policies: dict[str, str | None]
    _sequence: str | None = None  # of the ids

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._claim_cursors = ClaimCursors()

    def enqueue(self, rows: Sequence[EnqueueRow]) -> list[int]:
        if not rows:
            return []
        parts = split_batch(rows, SENT_AT_ONCE)
        few = len(parts) == 1 and len(rows) < COPIED_FROM
        try:
            if len(rows) == 1 and self._sequence is None:
                self._sequence = str(self.value(SEQUENCE, f"{self.quoted}.jobs"))
            if self.alone and few:
                with self.committing():
                    return self._insert(rows)
            with self.transaction():
                return self._insert(rows) if few else self._copy(parts)
        except CommitUnknown as error:
            raise StoreUnsure(
                f"{error}; the jobs of this call may or may not have been enqueued: its commit was not answered"
            ) from error

    def _insert(self, rows: Sequence[EnqueueRow]) -> list[int]:
        if len(rows) == 1:
            return self.column(ENQUEUE_ONE, self._sequence, self.channel, *enqueued(rows[0]).values())
        batch = packed([enqueued(row) for row in rows])
        return self.column(ENQUEUE, batch, f"{self.quoted}.jobs", self.channel)

    def _copy(self, parts: Sequence[EnqueueBatch]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            now, own = self._reserved(len(part))
            ids += own
            with self.on_connection() as connection, connection.cursor().copy(COPY.replace("{s}", self.quoted)) as copy:
                for at in range(0, len(part), _WRITTEN_AT_ONCE):
                    end = at + _WRITTEN_AT_ONCE
                    copy.write(_lines(part[at:end], own[at:end], now).encode())
            for place, n in Counter(part.places).items():
                kind = part.kinds[place]
                self.count(SCHEDULED if _due(kind, now) > now else READY, kind.queue, 0, n)
        self.later("select pg_notify($1, '')", self.channel)
        return ids

    def _reserved(self, n: int) -> tuple[int, Sequence[int]]:
        """The time, and so many ids: one run, unless somebody else took some between."""
        now, first, last = self.rows(RESERVE_RUN, f"{self.quoted}.jobs", n)[0]
        if last - first == n - 1:
            return now, range(first, last + 1)
        return now, self.reserved(n)

    def reserved(self, n: int) -> list[int]:
        """Ids, and ages, behind everything that waits."""
        return sorted(self.column(RESERVE, f"{self.quoted}.jobs", n))

    def promote(self, limit: int) -> int:
        with self.transaction():
            moved = self.rows(PROMOTE, limit)
            for (queue, tier), n in Counter(moved).items():
                self.count(SCHEDULED, queue, tier, -n)
                self.count(READY, queue, tier, n)
            return len(moved)

    def waiting(self, served: frozenset[str] | None) -> dict[str, Waiting]:
        with self.snapshot():
            self.write_counts()
            return waiting_of(self.rows(CLAIMABLE), served)

    def next_due(self) -> float | None:
        with self.snapshot():
            return _seconds(self.value(NEXT_DUE))

    def look(self, served: frozenset[str] | None, limit: int) -> Look:
        """One statement as long as nothing is due."""
        with self.transaction():
            self.write_counts()
            with self.in_itself():
                (_, _, kept, due), *rows = self.rows(LOOK)
            if due is not None and due <= 0:
                moved = self.promote(limit)
                self.write_counts()
                (_, _, kept, due), *rows = self.rows(LOOK)
                if due is not None and due <= 0 and moved < limit:
                    due = min(self.value(DUE_LATER) or LOCKED_AGAIN, LOCKED_AGAIN)
            if kept > FOLDED_FROM + 10 * len(rows):
                self.later(FOLD, FOLDED_AT_ONCE)
            waiting = waiting_of((row[:3] for row in rows), served)
            self._ready = {queue: n.fresh + n.retries for queue, n in waiting.items()}
            return Look(waiting, _seconds(due))

    def paused(self) -> frozenset[str]:
        with self.snapshot():
            return frozenset(self.column("select queue from {s}.queues where paused"))

    def claim(self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve) -> list[Lease]:
        if self.owner_id is None:
            raise StoreError("claim: join first, so that the leases have an owner")
        with self.transaction():
            if len(takes) == 1 and (few := self._claim_few(takes[0], ttl, resolve)):
                return few
            rows = [row for take in takes for row in self._pick(take)]
            rows = self._as_fit(rows)
            for policy, ids in self._by_policy(rows, resolve).items():
                self.later(CLAIM, self.owner_id, microseconds(ttl), policy, array(ids))
            for (queue, tier), n in by_queue_and_tier(rows).items():
                self.count(READY, queue, tier, -n)
                self.count(IN_FLIGHT, queue, tier, n)
            return leases_from(rows)

    def _claim_few(self, take: ClaimRequest, ttl: float, resolve: Resolve) -> list[Lease]:
        """In one statement, which is a transaction of its own if nothing else is in this one. None, if that can't be done."""
        policies = self._policies_of(take.queue, resolve)
        if take.limit > FEW or take.max_retries_claimed or policies is None:
            return []
        began = time.monotonic()
        claim_cursor = self._claim_cursors.of(take.queue, take.urgent, began)
        claim = (
            CLAIM_FEW,
            take.queue,
            take.limit,
            *(claim_cursor or (ALL, ALL)),
            self.owner_id,
            microseconds(ttl),
            policies,
        )
        if self.is_last:
            with self.committing(), self.in_itself():
                rows = self.rows(*claim)
        else:
            rows = self.rows(*claim)
        self._claim_cursors.note(take.queue, [row for row in rows if row[7] < take.urgent])
        if claim_cursor is None and rows:
            now = time.monotonic()
            self._claim_cursors.looked(take.queue, now - began, now)
        return leases_from(rows)

    def _pick(self, take: ClaimRequest) -> list[list[Any]]:
        began = time.monotonic()
        rule = (take.queue, take.limit, take.retries_first, take.max_retries_claimed, take.urgent)
        claim_cursor = self._claim_cursors.of(take.queue, take.urgent, began)
        found = (
            self.rows(CANDIDATES, *rule) if claim_cursor is None else self.rows(CANDIDATES_FROM, *rule, *claim_cursor)
        )
        if claim_cursor is not None and len(found) < min(take.limit, self._ready.get(take.queue, take.limit)):
            claim_cursor, found = None, self.rows(CANDIDATES, *rule)
        self._claim_cursors.note(take.queue, [row for row in found if row[8] == 0 and row[7] < take.urgent])
        if claim_cursor is None:
            now = time.monotonic()
            self._claim_cursors.looked(take.queue, now - began, now)
        return [list(row) for row in found]

    def forget(self) -> None:
        super().forget()
        self._claim_cursors.forget()

    def _as_fit(self, rows: list[list[Any]]) -> list[list[Any]]:
        """The first of these candidates that fit into one claim, the heavy ones with their texts."""
        large = [row for row in rows if row[4] is None]
        if not large:
            return rows
        fit = self.as_fit([row[0] for row in large])
        for row, (payload, headers) in zip(large, self.rows(TEXTS, array(fit)), strict=False):
            row[4], row[5] = payload, headers
        return rows if len(fit) == len(large) else rows[: rows.index(large[len(fit)])]

    def as_fit(self, ids: list[int], lengths: str = LENGTHS) -> list[int]:
        """The first of these jobs, as many as are within CLAIM_LENGTH together; at least one."""
        room = CLAIM_LENGTH
        for place, length in enumerate(self.column(lengths, array(ids))):
            room -= length
            if room < 0:
                return ids[: max(1, place)]
        return ids

    def _note_resolve(self, resolve: Resolve) -> None:
        if resolve != self._resolve:  # the settings were read again
            self._resolve, self._resolved, self._policies = resolve, {}, {}

    def _policies_of(self, queue: str, resolve: Resolve) -> str | None:
        """Those known for this queue, by handler, as JSON; None if they are none or many."""
        self._note_resolve(resolve)
        if queue not in self._policies:
            known = {handler: policy for (handler, of), policy in self._resolved.items() if of == queue}
            self._policies[queue] = packed(known) if 0 < len(known) <= FEW_HANDLERS else None
        return self._policies[queue]

    def _by_policy(self, rows: Iterable[list[Any]], resolve: Resolve) -> dict[str, list[int]]:
        """The ids of rows of LEASE by the policy that they are claimed under, which is put into each."""
        self._note_resolve(resolve)
        ids: dict[str, list[int]] = {}
        for (handler, queue), run in groupby(rows, itemgetter(2, 3)):
            policy = self._resolved.get((handler, queue))
            if policy is None:
                if len(self._resolved) >= _MAX_RESOLVED:
                    self._resolved.clear()
                policy = self._resolved[handler, queue] = policy_text(resolve(handler, queue))
                self._policies.pop(queue, None)
            its = ids.setdefault(policy, [])
            for row in run:
                row[11] = policy
                its.append(row[0])
        return ids


_MAX_RESOLVED = 10_000
_WRITTEN_AT_ONCE = 1_000


def split_batch(rows: Sequence[EnqueueRow], most: int) -> list[EnqueueBatch]:
    """In order, each of about so many characters (or one row)."""
    rows = EnqueueBatch.of(rows)
    parts: list[EnqueueBatch] = []
    start = length = 0
    around = [200 + len(kind.headers or "") for kind in rows.kinds]
    for at, (place, payload) in enumerate(zip(rows.places, rows.payloads, strict=True)):
        its = len(payload) + around[place]
        length += its
        if length > most and at > start:
            parts.append(rows[start:at])
            start, length = at, its
    return [*parts, rows[start:]]


def enqueued(row: EnqueueRow) -> dict[str, Any]:
    return {
        "handler": row.handler,
        "queue": row.queue,
        "payload": row.payload,
        "headers": row.headers,
        "priority": row.priority,
        "options": options_text(row),
        "delay": microseconds(row.delay) if row.delay else None,
        "at": row.at,
    }


def _due(row: EnqueueRow, now: int) -> int:
    return now + microseconds(row.delay) if row.delay else now if row.at is None else row.at


def _lines(rows: EnqueueBatch, ids: Sequence[int], now: int) -> str:
    """As COPY reads them. Plain, since many go in at once."""
    payloads = rows.payloads
    if not _is_plain("".join(payloads)):
        payloads = [_escaped(payload) for payload in payloads]
    heads = {place: _head(rows.kinds[place], now) for place in set(rows.places)}
    its = [heads[place] for place in rows.places]
    return "".join([f"{id}\t{id}\t{head}\t{payload}\n" for id, head, payload in zip(ids, its, payloads, strict=True)])


def _head(row: EnqueueRow, now: int) -> str:
    """What stands in its line between the ids and the payload."""
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


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else max(0.0, micros / 1e6)


def leases_from(rows: Iterable[Sequence[Any]]) -> list[Lease]:
    """From rows of LEASE. Plain, since this is the hot path."""
    leases: list[Lease] = []
    make = tuple.__new__
    for row in rows:
        policy = policy_from(row[11], row[12])
        leases.append(make(Lease, (*row[:11], policy)))
    return leases


@lru_cache(4096)
def policy_from(text: str | None, options: str | None) -> Policy:
    """The default for a row that names none (it was put in flight by hand)."""
    policy = Policy() if text is None else policy_of(text)
    return policy if options is None else overlaid(policy, options)
