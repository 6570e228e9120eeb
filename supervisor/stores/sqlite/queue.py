"""Enqueue, look and claim in SQLite, with one statement for each step of a batch. Every read uses a partial index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.jobs import (
    LEASE_PAYLOAD,
    LEASE_PRIORITY,
    LEASE_QUEUE,
    ExpiredJob,
    Lease,
)
from supervisor.retry import SUSPECT
from supervisor.stores.codes import BLOCKED, IN_FLIGHT, READY, SCHEDULED
from supervisor.stores.counts import ROWS_OF_A_LOOK, Turns, waiting_of
from supervisor.stores.expiry import next_look
from supervisor.stores.extras import ExistingId, Extras
from supervisor.stores.fencing import NEXT_TOKEN
from supervisor.stores.records import (
    ClaimRequest,
    EnqueueBatch,
    EnqueueRow,
    Look,
    Resolve,
    by_queue_and_tier,
    microseconds,
    options_text,
)
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.expiry import NEXT as NEXT_EXPIRY
from supervisor.stores.sqlite.expiry import Expiries
from supervisor.stores.sqlite.extras import NewExtras
from supervisor.stores.sqlite.job_limits import leave_line
from supervisor.stores.sqlite.links import Links
from supervisor.stores.sqlite.long_texts import FORGET_LONG_TEXTS, put_long_texts, with_long_texts
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.ownership import Ownership
from supervisor.stores.sqlite.policies import Policies
from supervisor.stores.sqlite.texts import MAX_INLINE, headers_are_long
from supervisor.stores.sqlite.unique import UniqueKeys
from supervisor.stores.unique import naming_no_new_job

ROWS_OF_A_STATEMENT = 100
"""Each statement of an enqueue updates the id sequence once."""

DUE = Select(
    "id, queue, tier",
    f"from (select id, queue, tier from jobs where state = {SCHEDULED} and due_at <= ? order by due_at, id limit ?)",
)
PROMOTE = f"update jobs set state = {READY} where id in (select value from json_each(?))"

MAKE_DUE = f"""
  update jobs set due_at = ?1 where id in (
    select id from jobs where state = {SCHEDULED} and due_at > ?1 and due_at <= ?2 and retries = 0 and token > 0
      and expired_count < {SUSPECT} and handler in (select value from json_each(?3))
      and not exists (select 1 from snoozes where job_id = jobs.id and until = due_at) order by due_at limit ?4)"""
NEXT_DUE = f"select min(due_at) from jobs where state = {SCHEDULED}"
# The first ready jobs by queue, behind the queue ?1, of ?2 rows at most, in the served queues ?3.
LOOK = f"""
  select json_array(
    json((select json_group_array(json_array(queue, tier, n)) from (
      select queue, tier, n from counts
      where state = {READY} and queue > ?1 and n > 0 and queue not in (select queue from queues where paused)
        and (?3 is null or queue in (select value from json_each(?3)))
      order by queue, tier limit ?2))),
    ({NEXT_DUE}), ({NEXT_EXPIRY}))"""
NEWLY_READY = Select(
    "queue, tier",
    f"""from (
      select json_extract(value, '$[0]') as queue, json_extract(value, '$[1]') as tier from json_each(?)) as it
      where queue not in (select queue from queues where paused)
        and not exists (
          select 1 from counts where state = {READY} and counts.queue = it.queue and counts.tier = it.tier and n > 0)""",
)
PAUSED = "select json_group_array(queue) from queues where paused"

# The long texts are read only for the jobs that are claimed. Another program may have put one into the row. The token lacks its
# random part: so long a number takes long to write and to read.
COLUMNS = f"""id, {NEXT_TOKEN}, handler, queue,
      iif(length(payload) <= {MAX_INLINE} and not {headers_are_long("jobs")}, cast(payload as text), null),
      iif(length(headers) <= {MAX_INLINE}, cast(headers as text), null),
      retries, priority, tier, due_at, created_at, null, expired_count, options"""
CANDIDATES = Select(
    COLUMNS,
    f"""from (
      select id as candidate from jobs
      where state = {READY} and queue = ? and tier = ? and queue not in (select queue from queues where paused)
      order by priority desc, age limit ?)
    cross join jobs on jobs.id = candidate""",
)
CLAIM = f"""
  update jobs set state = {IN_FLIGHT}, token = {NEXT_TOKEN} | ?, owner = ?, lease_until = ?, started_at = null, policy = ?
  where id in (select value from json_each(?))"""

WAITS = Select("state, queue, tier", f"from jobs where id = ? and state < {IN_FLIGHT}")
SET_QUEUE = "update jobs set queue = ? where id = ?"
REPLACE = """
  update jobs set handler = ?2, priority = ?3, payload = ?4, headers = ?5, options = ?6, state = ?7,
    due_at = coalesce(?8, due_at), age = iif(tier, id, age), tier = 0, retries = 0, started_at = null
  where id = ?1"""
FORGET_SNOOZES = "delete from snoozes where job_id = ?"
KNOWN_BEFORE = "select 1 from jobs where id = ? and created_at = ? and handler = ?"
LAST_AGE = "select seq from sqlite_sequence where name = 'jobs'"


class _Values(NamedTuple):
    """The columns of a new job, without id, age, created_at and payload. Long headers are not among them."""

    handler: str
    queue: str
    priority: int
    headers: str | None
    options: str | None
    due_at: int
    state: int


class Queue:
    """Jobs that are enqueued, become due, and are claimed."""

    def __init__(
        self, connection: Connection, policies: Policies, owner: Ownership, notifier: Notifier, links: Links
    ) -> None:
        self._connection, self._policies, self._owner, self._notifier = connection, policies, owner, notifier
        self._links, self._expiries = links, Expiries(connection, links)
        self._extras = NewExtras(connection, links, self._expiries, UniqueKeys(connection))
        self._turns = Turns()

    def enqueue(self, rows: Sequence[EnqueueRow]) -> list[int]:
        """Store the rows. If a commit failed but may have stored them, a repeated call with the same EnqueueBatch does not store them
        twice, even if other rows were enqueued, or the store was closed, meanwhile."""
        if not rows:
            return []
        attempt = None
        try:
            with self._connection.transaction():
                ids = self._stored_before(rows)
                if ids is None:
                    attempt = ids, _ = self._insert(rows)
                # A supervisor that wakes now looks after this commit, since its look takes the write lock too.
                self._notifier.notify()
        except StoreUnavailable:
            if attempt is not None and isinstance(rows, EnqueueBatch):
                rows.unsure = attempt
            raise
        if isinstance(rows, EnqueueBatch):
            rows.unsure = None
        return list(ids)

    def _stored_before(self, rows: Sequence[EnqueueRow]) -> Sequence[int] | None:
        if not isinstance(rows, EnqueueBatch) or rows.unsure is None:
            return None
        ids, created_at = rows.unsure
        first = next((at for at, id in enumerate(ids) if not isinstance(id, ExistingId)), None)
        if first is None or not self._connection.value(KNOWN_BEFORE, ids[first], created_at, rows[first].handler):
            return None
        return ids

    def _insert(self, rows: Sequence[EnqueueRow]) -> tuple[Sequence[int], int]:
        """Insert the rows, and return (ids, created_at)."""
        now = self._connection.now()
        if len(rows) == 1:  # as most programs do it
            return self._with_turns([self._insert_one(rows[0], now)], EnqueueBatch.of(rows)), now
        batch = EnqueueBatch.of(rows)
        if any(kind.extras is not None for kind in batch.kinds):
            if self._extras.are_only_unique(batch):
                return self._with_turns(self._insert_unique(batch, now), batch), now
            each: list[int] = []
            with naming_no_new_job(each):
                for row in batch:
                    each.append(self._insert_one(row.with_parents(each), now))
            return self._with_turns(each, batch), now
        first = next_age(self._connection)
        for start in range(0, len(batch), ROWS_OF_A_STATEMENT):
            self._insert_part(batch[start : start + ROWS_OF_A_STATEMENT], now, first + start)
        return self._with_turns(range(first, first + len(batch)), batch), now

    def _with_turns(self, ids: Sequence[int], batch: EnqueueBatch) -> Sequence[int]:
        """Give these new jobs turns if some of them have a group, or are in a queue where others have one. Those that have parents
        take theirs once these have ended."""
        if self._links.groups.in_use() or any(kind.extras is not None and kind.extras.group for kind in batch.kinds):
            new = zip(ids, batch, strict=True)
            taking = [id for id, row in new if not isinstance(id, ExistingId) and not (row.extras and row.extras.after)]
            self._links.groups.take_turns(taking)
        return ids

    def _insert_unique(self, batch: EnqueueBatch, now: int) -> list[int]:
        """Insert those of the rows, which have unique keys and no other extras, whose keys no job has."""
        keys = [row.extras.unique or "" for row in batch if row.extras is not None]
        taken: dict[str, int] = self._extras.holders(keys, now)
        ids, new, first = list[int](), EnqueueBatch(), next_age(self._connection)
        for key, row in zip(keys, batch, strict=True):
            if key in taken:
                ids.append(ExistingId(taken[key]))
            else:
                ids.append(first + len(new))
                taken[key] = ids[-1]
                new.append(row)
        for start in range(0, len(new), ROWS_OF_A_STATEMENT):
            self._insert_part(new[start : start + ROWS_OF_A_STATEMENT], now, first + start)
        self._extras.add_unique(first, new, now)
        return ids

    def _insert_one(self, row: EnqueueRow, now: int) -> int:
        id, values = next_age(self._connection), _values(row, now)
        if row.extras is not None and (existing := self._extras.existing(id, row.extras, now)) is not None:
            replaced = row.extras.on_conflict == "replace" and self._replace(existing, row, row.extras, now)
            return ExistingId(existing, replaced=replaced)
        payload: str | None = row.payload
        if len(row.payload) > MAX_INLINE or values.headers is not row.headers:
            ((payload, _),) = put_long_texts(self._connection, [(id, row.payload, row.headers)])
        self._connection.run(_ONE_ROW, now, id, payload, *values)
        self._connection.counts.add(values.state, values.queue, 0)
        if row.extras is not None:
            self._extras.add(id, row.extras, now, ready=values.state == READY)
        return id

    def _replace(self, id: int, row: EnqueueRow, extras: Extras, now: int) -> bool:
        """Change the job into this row, unless it has been claimed or has ended. Return whether it was changed."""
        found = self._connection.rows(WAITS, id)
        if not found:
            return False
        ((before, queue, tier),) = found
        if before == BLOCKED and leave_line(self._connection, id):
            self._connection.counts.add(BLOCKED, queue, tier, -1)
            self._connection.counts.add(READY, queue, tier)
            before = READY
        values = _values(row, now)
        waits_for_key = self._links.unlink(id, keep_key=not extras.after)
        state, due = (BLOCKED, None) if waits_for_key else (values.state, values.due_at)
        if row.queue != queue:
            self._connection.counts.write()  # a trigger changes them by itself
            self._connection.run(SET_QUEUE, row.queue, id)
        self._connection.run(FORGET_LONG_TEXTS, id)
        self._connection.run(FORGET_SNOOZES, id)
        ((payload, headers),) = put_long_texts(self._connection, [(id, row.payload, row.headers)])
        if state != READY:
            self._links.groups.free_turns([id])
        self._connection.run(REPLACE, id, row.handler, row.priority, payload, headers, values.options, state, due)
        self._connection.counts.add(before, row.queue, tier, -1)
        self._connection.counts.add(state, row.queue, 0)
        self._extras.replace(id, extras, now, newly_ready=state == READY and before != READY)
        return True

    def _insert_part(self, part: EnqueueBatch, now: int, first: int) -> None:
        places = Counter(part.places)
        kinds = {place: _values(part.kinds[place], now) for place in places}
        payloads: Sequence[str | None] = part.payloads
        headers_moved = any(values.headers is not part.kinds[place].headers for place, values in kinds.items())
        if headers_moved or max(map(len, part.payloads)) > MAX_INLINE:
            texts = [(id, row.payload, row.headers) for id, row in enumerate(part, first)]
            payloads = [payload for payload, _ in put_long_texts(self._connection, texts)]
        given: list[Sequence[Any]] = [payloads]
        if len(kinds) == 1:
            given += [[value] for value in kinds[part.places[0]]]
        else:
            columns = zip(*[kinds[place] for place in part.places], strict=True)
            given += [column[:1] if column.count(column[0]) == len(column) else column for column in columns]
        sql = insert_sql(len(part), tuple(map(len, given)))
        self._connection.run(sql, now, first, *chain.from_iterable(given))
        for place, n in places.items():
            self._connection.counts.add(kinds[place].state, kinds[place].queue, 0, n)

    def look(self, served: frozenset[str] | None, limit: int, stay: bool = False) -> Look:
        """Use one statement as long as nothing is due: each one releases the GIL, and waits to get it again."""
        with self._connection.transaction():
            self._connection.counts.write(READY)
            behind, only = self._turns.behind, None if served is None else packed(list(served))
            rows, due, expires = self._connection.json(LOOK, behind, ROWS_OF_A_LOOK, only)
            now, new, expired = self._connection.now(), frozenset[tuple[str, int]](), tuple[ExpiredJob, ...]()
            if (due is not None and due <= now) or (expires is not None and expires <= now):
                expired, more = self._expiries.sweep(now, limit)
                if more:
                    return Look({}, 0.0, expired=expired)
                new = self._promote(limit)
                self._connection.counts.write()
                rows, due, expires = self._connection.json(LOOK, behind, ROWS_OF_A_LOOK, only)
            if behind and len(rows) < ROWS_OF_A_LOOK:
                first, *_ = self._connection.json(LOOK, "", ROWS_OF_A_LOOK - len(rows), only)
                rows += [row for row in first if row[0] <= behind]
            rows, more = self._turns.shown(rows, stay)
            return Look(waiting_of(rows), self._seconds(due, expires), new, more, behind, expired)

    def _seconds(self, due: int | None, expires: int | None) -> float | None:
        """Return the time until the next look."""
        now = self._connection.now()
        wait = next_look(None if due is None else due - now, None if expires is None else expires - now)
        return None if wait is None else max(0.0, wait / 1e6)

    def _promote(self, limit: int) -> frozenset[tuple[str, int]]:
        """Make due jobs ready. Return the queues and tiers that had no ready job before."""
        due = self._connection.rows(DUE, self._connection.now(), limit)
        promoted = Counter((queue, tier) for _, queue, tier in due)
        new = self._connection.rows(NEWLY_READY, packed(list(promoted)))
        self._connection.run(PROMOTE, packed([id for id, _, _ in due]))
        self._links.due(id for id, _, _ in due)
        for (queue, tier), n in promoted.items():
            self._connection.counts.add(SCHEDULED, queue, tier, -n)
            self._connection.counts.add(READY, queue, tier, n)
        return frozenset((queue, tier) for queue, tier in new)

    def make_due(self, handlers: Collection[str], within: float, limit: int) -> int:
        with self._connection.transaction():
            now = self._connection.now()
            return self._connection.run(MAKE_DUE, now, now + microseconds(within), packed(list(handlers)), limit)

    def paused(self) -> frozenset[str]:
        with self._connection.snapshot():
            return frozenset(self._connection.json(PAUSED))

    def claim(self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve) -> list[Lease]:
        if self._owner.id is None:
            raise StoreError("claim: join first, so that the leases have an owner")
        with self._connection.transaction():
            rows = [row for take in takes for row in self._pick(take)]
            if self._turns.partial:
                self._turns.claimed(takes, {row[LEASE_QUEUE] for row in rows})
            return self.claim_rows(rows, ttl, resolve) if rows else []

    def claim_rows(self, rows: list[list[Any]], ttl: float, resolve: Resolve) -> list[Lease]:
        random_part = self._owner.random_part()
        rows = with_long_texts(self._connection, rows) if any(row[LEASE_PAYLOAD] is None for row in rows) else rows
        until = self._connection.now() + microseconds(ttl)
        leases, by_policy = self._policies.assign(rows, random_part, resolve)
        for policy, ids in by_policy.items():
            self._connection.run(CLAIM, random_part, self._owner.id, until, policy, packed(ids))
        for (queue, tier), n in by_queue_and_tier(leases).items():
            self._connection.counts.add(READY, queue, tier, -n)
            self._connection.counts.add(IN_FLIGHT, queue, tier, n)
        return leases

    def _pick(self, take: ClaimRequest) -> list[list[Any]]:
        fresh = self._connection.rows(CANDIDATES, take.queue, 0, take.limit)
        urgent = len([row for row in fresh if row[LEASE_PRIORITY] >= take.urgent])
        most = take.retries_wanted(len(fresh))
        retries = self._connection.rows(CANDIDATES, take.queue, 1, most) if most else []
        return take.pick(fresh, urgent, retries)


def next_age(connection: Connection) -> int:
    """Return the next value of the id sequence: an age behind all jobs that wait."""
    return int(connection.value(LAST_AGE)) + 1


@lru_cache(256)
def insert_sql(rows: int, given: tuple[int, ...]) -> str:
    """Return an insert of `rows` rows. Its parameters are the time, the first id, and for each column (payload, then _Values) the
    number of values in `given`: one for each row, or one that all rows share. To pass a value for each row would be most of
    the cost of a row."""
    marks, last = [], 2
    for n in given:
        marks.append([last + 1] * rows if n == 1 else range(last + 1, last + 1 + n))
        last += n
    values = [
        f"(?2 + {row}, ?2 + {row}, ?1, {', '.join([f'?{number}' for number in numbers])})"
        for row, numbers in enumerate(zip(*marks, strict=True))
    ]
    return f"insert into jobs(id, age, created_at, payload, {', '.join(_Values._fields)}) values {', '.join(values)}"


_ONE_ROW = insert_sql(1, (1,) * (1 + len(_Values._fields)))


def _values(row: EnqueueRow, now: int) -> _Values:
    due = now + microseconds(row.delay) if row.delay else now if row.at is None else row.at
    state = BLOCKED if row.extras is not None and row.extras.after else SCHEDULED if due > now else READY
    headers = row.headers if row.headers is None or len(row.headers) <= MAX_INLINE else None
    return _Values(row.handler, row.queue, row.priority, headers, options_text(row), due, state)
