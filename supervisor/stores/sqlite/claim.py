"""From enqueue to claim in SQLite. One statement per batch and step; every read goes through a partial index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.jobs import Lease
from supervisor.stores.codes import IN_FLIGHT, READY, SCHEDULED
from supervisor.stores.counts import waiting_of
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
)
from supervisor.stores.sqlite.connection import packed
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.policies import BY_ID, TEXTS, Policies

ENQUEUED_AT_ONCE = 100  # rows in one statement: each pays for the id sequence once
CLAIM_LENGTH = 16_000_000  # and in one claim: reading them takes several times as much memory, for a moment
_MEASURED_AT_ONCE = 64

LENGTH = "coalesce(length(payload), 0) + coalesce(length(headers), 0)"

DUE = f"""(select id, queue, tier from jobs where state = {SCHEDULED} and due_at <= ? order by due_at, id limit ?)"""
PROMOTE = f"update jobs set state = {READY} where id in (select value from json_each(?))"

UNPAUSED = "queue not in (select queue from queues where paused)"
CLAIMABLE = f"counts where state = {READY} and n > 0 and {UNPAUSED}"
NEXT_DUE = f"select min(due_at) from jobs where state = {SCHEDULED}"
LOOK = f"select json_array(json((select json_group_array(json_array(queue, tier, n)) from {CLAIMABLE})), ({NEXT_DUE}))"
_LIGHT = f"{LENGTH} <= 4096"  # what is longer is not read with the other candidates
CANDIDATES = f"""(select id as candidate from jobs where state = {READY} and queue = ? and {UNPAUSED} and tier = ?
  order by priority desc, age limit ?) cross join jobs on jobs.id = candidate"""
CANDIDATE = f"""id, token + 1, handler, queue, iif({_LIGHT}, coalesce(cast(payload as text), ''), null),
  iif({_LIGHT}, cast(headers as text), null), retries, priority, tier, due_at, created_at, null, options"""
CLAIM = f"""update jobs set state = {IN_FLIGHT}, token = token + 1, owner = ?, lease_until = ?, started_at = null,
  policy = ? where id in (select value from json_each(?))"""


class Claims(Policies):
    """`owner_id` is the row of `supervisors` that claims are made for; None until the store has joined."""

    owner_id: int | None = None
    notifier: Notifier

    def enqueue(self, rows: Sequence[EnqueueRow]) -> list[int]:
        """If a commit failed in a way that may have kept the rows, the same `Rows` again are not stored twice, whatever else
        was enqueued or closed meanwhile."""
        if not rows:
            return []
        attempt = None
        try:
            with self.transaction():
                first = self._stored_before(rows)
                if first is None:
                    attempt = first, _ = self._insert(rows)
                # Whoever wakes now looks after this commit, for its look takes the lock of writers too; and wakes meanwhile.
                self.notifier.notify()
        except StoreUnavailable:
            if attempt is not None and isinstance(rows, EnqueueBatch):
                rows.unsure = attempt
            raise
        if isinstance(rows, EnqueueBatch):
            rows.unsure = None
        return list(range(first, first + len(rows)))

    def _stored_before(self, rows: Sequence[EnqueueRow]) -> int | None:
        if not isinstance(rows, EnqueueBatch) or rows.unsure is None:
            return None
        first, created_at = rows.unsure
        stored = self.value(
            "select 1 from jobs where id = ? and created_at = ? and handler = ?", first, created_at, rows[0].handler
        )
        return first if stored else None

    def _insert(self, rows: Sequence[EnqueueRow]) -> tuple[int, int]:
        """(id of the first, created_at)."""
        now, first = self.now(), self.next_age()
        if len(rows) == 1:  # as most programs do it
            (row,) = rows
            values = _values(row, now)
            self.run(_ONE, now, first, row.payload, *values)
            _, queue, *_, state = values
            self.count(state, queue, 0)
            return first, now
        its = EnqueueBatch.of(rows)
        for start in range(0, len(its), ENQUEUED_AT_ONCE):
            part = its[start : start + ENQUEUED_AT_ONCE]
            kinds = {place: _values(part.kinds[place], now) for place in set(part.places)}
            few = [kinds[place] for place in part.places] if len(kinds) > 1 else list(kinds.values())
            columns = list(zip(*few, strict=True))
            given = [part.payloads, *map(_shared, columns)]
            sql = enqueue_sql(len(part), tuple(map(len, given)))
            self.run(sql, now, first + start, *chain.from_iterable(given))
            self._count(columns, len(part) // len(few))
        return first, now

    def _count(self, columns: Sequence[Sequence[Any]], n: int) -> None:
        """Each row, so many times."""
        _, queues, *_, states = columns
        for (queue, state), times in Counter(zip(queues, states, strict=True)).items():
            self.count(state, queue, 0, times * n)

    def next_age(self) -> int:
        """The next value of the id sequence: behind everything that waits."""
        return int(self.value("select seq from sqlite_sequence where name = 'jobs'")) + 1

    def promote(self, limit: int) -> int:
        with self.transaction():
            due = self.rows("id, queue, tier", DUE, self.now(), limit)
            if due:
                self.run(PROMOTE, packed([row[0] for row in due]))
            for (queue, tier), n in Counter((row[1], row[2]) for row in due).items():
                self.count(SCHEDULED, queue, tier, -n)
                self.count(READY, queue, tier, n)
            return len(due)

    def waiting(self, served: frozenset[str] | None) -> dict[str, Waiting]:
        with self.snapshot():
            self.write_counts()
            return waiting_of(self.rows("queue, tier, n", CLAIMABLE), served)

    def next_due(self) -> float | None:
        with self.snapshot():
            due = self.value(NEXT_DUE)
        return self._seconds_until(due)

    def look(self, served: frozenset[str] | None, limit: int) -> Look:
        """One statement as long as nothing is due: each hands the GIL back, and waits to have it again."""
        with self.transaction():
            self.write_counts(READY)
            rows, due = self.ask(LOOK)
            if due is not None and due <= self.now():
                self.promote(limit)
                self.write_counts()
                rows, due = self.ask(LOOK)
            return Look(waiting_of(rows, served), self._seconds_until(due))

    def _seconds_until(self, due: int | None) -> float | None:
        return None if due is None else max(0.0, (due - self.now()) / 1e6)

    def paused(self) -> frozenset[str]:
        with self.snapshot():
            return frozenset(self.column("queue", "queues where paused"))

    def claim(self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve) -> list[Lease]:
        if self.owner_id is None:
            raise StoreError("claim: join first, so that the leases have an owner")
        with self.transaction():
            rows = [row for take in takes for row in self._pick(take)]
            if not rows:
                return []
            rows = self._as_fit(rows)
            until = self.now() + microseconds(ttl)
            for policy, ids in self.by_policy(rows, resolve).items():
                self.run(CLAIM, self.owner_id, until, policy, packed(ids))
            for (queue, tier), n in by_queue_and_tier(rows).items():
                self.count(READY, queue, tier, -n)
                self.count(IN_FLIGHT, queue, tier, n)
            return self.leases_from(rows)

    def _as_fit(self, rows: list[list[Any]]) -> list[list[Any]]:
        """The first of these candidates that fit into one claim, the heavy ones with their texts."""
        large = [row for row in rows if row[4] is None]
        if not large:
            return rows
        fit = self.as_fit([row[0] for row in large])
        texts = self.rows(TEXTS, BY_ID, packed(fit))
        for row, (payload, headers) in zip(large, texts, strict=False):
            row[4], row[5] = payload, headers
        return rows if len(fit) == len(large) else rows[: rows.index(large[len(fit)])]

    def as_fit(self, ids: list[int], size: str = LENGTH, at_once: int = _MEASURED_AT_ONCE) -> list[int]:
        """The first of these jobs, as many as are within CLAIM_LENGTH together; at least one."""
        room = CLAIM_LENGTH
        for start in range(0, len(ids), at_once):
            lengths = self.column(size, BY_ID, packed(ids[start : start + at_once]))
            for place, length in enumerate(lengths, start):
                room -= length
                if room < 0:
                    return ids[: max(1, place)]
        return ids

    def _pick(self, take: ClaimRequest) -> list[list[Any]]:
        fresh = self.rows(CANDIDATE, CANDIDATES, take.queue, 0, take.limit)
        urgent = len([row for row in fresh if row[7] >= take.urgent])
        most = take.retries_wanted(len(fresh))
        retries = self.rows(CANDIDATE, CANDIDATES, take.queue, 1, most) if most else []
        return take.pick(fresh, urgent, retries)


_COLUMNS = ("payload", "handler", "queue", "priority", "headers", "options", "due_at", "state")


@lru_cache(256)
def enqueue_sql(rows: int, given: tuple[int, ...]) -> str:
    """By the time, the first id, and of each of _COLUMNS as many values as are `given`: one for every row, or the one that all
    share. To hand over a value for each row is most of what a row costs."""
    marks, last = [], 2
    for n in given:
        marks.append([last + 1] * rows if n == 1 else range(last + 1, last + 1 + n))
        last += n
    values = [
        f"(?2 + {row}, ?2 + {row}, ?1, {', '.join([f'?{number}' for number in numbers])})"
        for row, numbers in enumerate(zip(*marks, strict=True))
    ]
    return f"insert into jobs(id, age, created_at, {', '.join(_COLUMNS)}) values {', '.join(values)}"


_ONE = enqueue_sql(1, (1,) * len(_COLUMNS))


def _values(row: EnqueueRow, now: int) -> tuple[Any, ...]:
    """As in _COLUMNS, but for the payload."""
    handler, _, queue, priority, delay, at, *_, headers = row
    due = now + microseconds(delay) if delay else now if at is None else at
    return handler, queue, priority, headers, options_text(row), due, SCHEDULED if due > now else READY


def _shared(column: Sequence[Any]) -> Sequence[Any]:
    """Of a column that is the same in all rows, one."""
    return column[:1] if column.count(column[0]) == len(column) else column
