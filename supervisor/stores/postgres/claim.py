"""Look and claim in PostgreSQL: due jobs become ready, and an owner claims ready jobs by one statement for each request."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from supervisor.errors import StoreError
from supervisor.jobs import LEASE_HANDLER, LEASE_ID, LEASE_PRIORITY, LEASE_QUEUE, LEASE_TIER, ExpiredJob, Lease
from supervisor.retry import SUSPECT
from supervisor.stores.codes import IN_FLIGHT, READY, SCHEDULED
from supervisor.stores.counts import ROWS_OF_A_LOOK, Turns, waiting_of
from supervisor.stores.expiry import next_look
from supervisor.stores.fencing import NEXT_TOKEN
from supervisor.stores.postgres.claim_cursor import WHOLE, ClaimCursors, Position
from supervisor.stores.postgres.connection import NOW, Connection, Row, array
from supervisor.stores.postgres.counts import LAST_QUEUE, MAX_UNFOLDED, Counts
from supervisor.stores.postgres.expiry import NEXT as NEXT_EXPIRY
from supervisor.stores.postgres.expiry import Expiries
from supervisor.stores.postgres.links import Links
from supervisor.stores.postgres.ownership import Ownership
from supervisor.stores.postgres.policies import LEASE, Policies, leases_from
from supervisor.stores.records import ClaimRequest, Look, Resolve, microseconds

LOCKED_AGAIN = 1_000_000
"""Microseconds until the next look at due jobs that other sessions have locked."""

PROMOTE = f"""
  with due as materialized (
    select id, queue, tier from {{s}}.jobs where state = {SCHEDULED} and due_at <= {NOW}
    order by due_at, id limit $1
    for no key update skip locked)
  update {{s}}.jobs set state = {READY} from due where jobs.id = due.id
  returning due.queue, due.tier, case when jobs.linked is not null or exists (
    select from {{s}}.turns where turns.queue = jobs.queue and turns.priority = jobs.priority) then jobs.id end"""

MAKE_DUE = f"""
  with found as materialized (
    select id from {{s}}.jobs where state = {SCHEDULED} and due_at > {NOW} and due_at <= {NOW} + $1 and retries = 0 and token > 0
      and expired_count < {SUSPECT} and handler = any($2::text[])
      and not exists (select from {{s}}.snoozes where job_id = jobs.id and until = due_at)
    order by due_at, id limit $3
    for no key update skip locked)
  update {{s}}.jobs set due_at = {NOW} from found where jobs.id = found.id returning jobs.id"""

NEXT_DUE_LATER = f"select min(due_at) - {NOW} from {{s}}.jobs where state = {SCHEDULED} and due_at > {NOW}"
# The first row has the times until a job is due, and until one expires. The others have (queue, tier, number of ready jobs, number of rows of `counts`) of the
# first queues behind $1, at most $2 rows: the number of jobs is 0 if the queue is paused or not among the served ones, $3. With $4
# only queues with claimable jobs are among them. No row behind the last one is read.
LOOK = f"""
  select null, 0::smallint, (select min(due_at) - {NOW} from {{s}}.jobs where state = {SCHEDULED}), {NEXT_EXPIRY}
  union all (
    select queue, tier, claimable * n, of_counts from (
      select queue, tier, sum(n)::bigint as n, count(*) as of_counts,
        (queue not in (select queue from {{s}}.queues where paused) and ($3::text[] is null or queue = any($3)))::int as claimable
      from {{s}}.counts where state = {READY} and queue > $1 group by queue, tier) as it
    where claimable * n > 0 or (not $4 and (claimable = 1 or of_counts > {MAX_UNFOLDED}))
    order by queue, tier limit $2)"""
NEWLY_READY = f"""
  select queue, tier from unnest($1::text[], $2::smallint[]) as it(queue, tier)
  where queue not in (select queue from {{s}}.queues where paused) and coalesce((
    select sum(n) from {{s}}.counts where state = {READY} and counts.queue = it.queue and counts.tier = it.tier), 0) <= 0"""
PAUSED = "select queue from {s}.queues where paused"

# Ready in the eyes of this statement is also a job that another session is claiming.
FIRST_READY = f"""
  select queue, first.* from unnest($1::text[], $2::bigint[], $3::bigint[]) as it(queue, its_priority, its_age)
    left join lateral (
      select priority, age from {{s}}.jobs
      where state = {READY} and jobs.queue = it.queue and tier = 0 and priority = its_priority and age >= its_age
      order by age, id limit 1) as first on true"""

BYTES = "coalesce(octet_length(payload), 0) + coalesce(octet_length(headers), 0)"


def _claim_picked(queue: str, policies: str) -> str:
    """Return the end of each claim. It claims the first of `picked` (id, handler, bytes, and place in their order) whose texts have
    at most $6 bytes together, at least one, for the owner $3, for $4 microseconds, under the policies by handler, and tokens with the
    random part $7. If there is no policy for one of their handlers, it claims none, and returns rows without an id that name the
    handlers and their `queue`."""
    return f"""
  fit as materialized (
    select id as job_id, handler as job_handler, {queue} as job_queue, place, {policies} ->> handler as job_policy
    from (select *, sum(bytes) over (order by place) as total from picked) as it
    where total <= $6 or place = 1),
  claimed as (
    update {{s}}.jobs set state = {IN_FLIGHT}, token = {NEXT_TOKEN} | $7, owner = $3, lease_until = {NOW} + $4, started_at = null,
      policy = job_policy
    from fit where id = job_id and not exists (select from fit where job_policy is null)
    returning {LEASE}, age, place),
  counted as (
    insert into {{s}}.counts(state, queue, tier, n)
    select change.state, queue, tier, change.sign * n
    from (select queue, tier, count(*) as n from claimed group by queue, tier) as it,
      (values ({READY}, -1), ({IN_FLIGHT}, 1)) as change(state, sign))
  select * from claimed
  union all
  select null, null, job_handler, job_queue, null, null, null, null, null, null, null, null, null, null, null, place
  from fit where not exists (select from claimed)
  order by place"""


# It claims fresh jobs of the queues $1, up to the number of each in $2: first of a higher priority than the one in $8, then of that
# priority from the age in $9 on, then others. A part of a union is not begun before it is needed, so it locks no more jobs than it
# picks, and seldom reads what is before the position. The policies $5 are by queue, then by handler.
CLAIM_FRESH = f"""
  with takes as materialized (
    select * from unnest($1::text[], $2::bigint[], $8::bigint[], $9::bigint[]) with ordinality
      as it(queue, jobs, from_priority, from_age, turn)
    where not exists (select from {{s}}.queues where queues.queue = it.queue and paused)),
  picked as materialized (
    select id, handler, queue as picked_queue, bytes, row_number() over (order by turn, priority desc, age, id) as place
    from takes cross join lateral (
      select * from (
        select id, handler, priority, age, {BYTES} as bytes from {{s}}.jobs
        where state = {READY} and jobs.queue = takes.queue and tier = 0 and priority > from_priority
        order by priority desc, age, id limit takes.jobs
        for no key update skip locked) as higher
      union all select * from (
        select id, handler, priority, age, {BYTES} as bytes from {{s}}.jobs
        where state = {READY} and jobs.queue = takes.queue and tier = 0 and priority = from_priority and age >= from_age
        order by priority desc, age, id limit takes.jobs
        for no key update skip locked) as onward
      union all select * from (
        select id, handler, priority, age, {BYTES} as bytes from {{s}}.jobs
        where state = {READY} and jobs.queue = takes.queue and tier = 0 and priority <= from_priority
          and (priority < from_priority or age < from_age)
        order by priority desc, age, id limit takes.jobs
        for no key update skip locked) as others
      limit takes.jobs) as its),
  {_claim_picked("picked_queue", "$5::jsonb -> picked_queue")}"""
MAX_QUEUES = 200
"""The maximum of queues that one statement claims from."""


# It claims up to $2 jobs of the queue $1 in the order of ClaimRequest: urgent ones, of a priority from $13 on; up to $11 retries;
# fresh ones from the position ($8, $9) on as CLAIM_FRESH does, and others only if the last look has seen more jobs ($10); and
# retries to fill up, at most $12 retries in all.
CLAIM = f"""
  with is_open as materialized (
    select not exists (select from {{s}}.queues where queue = $1 and paused) as yes),
  urgent as materialized (
    select id, handler, priority, age, {BYTES} as bytes from {{s}}.jobs
    where state = {READY} and queue = $1 and tier = 0 and priority >= $13 and (select yes from is_open)
    order by priority desc, age, id limit $2
    for no key update skip locked),
  first_retries as materialized (
    select id, handler, priority, age, {BYTES} as bytes from {{s}}.jobs
    where state = {READY} and queue = $1 and tier = 1 and (select yes from is_open)
    order by priority desc, age, id limit least($11, $12, $2 - (select count(*) from urgent))
    for no key update skip locked),
  higher as materialized (
    select id, handler, priority, age, {BYTES} as bytes from {{s}}.jobs
    where state = {READY} and queue = $1 and tier = 0 and priority > $8 and priority < $13 and (select yes from is_open)
    order by priority desc, age, id
    limit $2 - (select count(*) from urgent) - (select count(*) from first_retries)
    for no key update skip locked),
  onward as materialized (
    select id, handler, priority, age, {BYTES} as bytes from {{s}}.jobs
    where state = {READY} and queue = $1 and tier = 0 and priority = $8 and age >= $9 and (select yes from is_open)
    order by priority desc, age, id
    limit $2 - (select count(*) from urgent) - (select count(*) from first_retries) - (select count(*) from higher)
    for no key update skip locked),
  others as materialized (
    select id, handler, priority, age, {BYTES} as bytes from {{s}}.jobs
    where state = {READY} and queue = $1 and tier = 0 and priority <= $8 and (priority < $8 or age < $9)
      and (select yes from is_open)
    order by priority desc, age, id
    limit greatest(0, least($2 - (select count(*) from first_retries), $10) - (select count(*) from urgent)
      - (select count(*) from higher) - (select count(*) from onward))
    for no key update skip locked),
  more_retries as materialized (
    select id, handler, priority, age, {BYTES} as bytes from {{s}}.jobs
    where state = {READY} and queue = $1 and tier = 1 and (select yes from is_open)
      and id <> all(array(select id from first_retries))
    order by priority desc, age, id
    limit least($12 - (select count(*) from first_retries),
      $2 - (select count(*) from urgent) - (select count(*) from first_retries) - (select count(*) from higher)
        - (select count(*) from onward) - (select count(*) from others))
    for no key update skip locked),
  picked as (
    select id, handler, bytes, row_number() over (order by part, priority desc, age, id) as place
    from (
      select 1 as part, * from urgent union all select 2, * from first_retries
      union all select 3, * from higher union all select 3, * from onward union all select 3, * from others
      union all select 4, * from more_retries) as it),
  {_claim_picked("$1", "$5::jsonb")}"""


# It claims the ready jobs $2 of the queue $1, whose rows are locked.
CLAIM_READY = f"""
  with picked as materialized (
    select jobs.id, handler, {BYTES} as bytes, row_number() over (order by it.place) as place
    from unnest($2::bigint[]) with ordinality as it(id, place) join {{s}}.jobs on jobs.id = it.id and state + 0 = {READY}),
  {_claim_picked("$1", "$5::jsonb")}"""


class Claims:
    def __init__(
        self, connection: Connection, counts: Counts, cursors: ClaimCursors, owner: Ownership, links: Links,
        claim_bytes: int,
    ) -> None:  # fmt: skip
        self._connection, self._counts, self._cursors, self._owner = connection, counts, cursors, owner
        self._links, self._claim_bytes = links, claim_bytes
        self._expiries = Expiries(connection, counts, links)
        self._turns = Turns()
        self._policies = Policies()
        self._fresh: Mapping[str, int] = {}  # fresh ready jobs by queue, at the last look
        connection.on_rollback(cursors.reset)

    def _promote(self, limit: int) -> tuple[int, frozenset[tuple[str, int]]]:
        """Make due jobs ready. Return how many, and the queues and tiers that had no ready job before."""
        with self._connection.transaction():
            rows = self._connection.rows(PROMOTE, limit)
            promoted = Counter((queue, tier) for queue, tier, _ in rows)
            queues, tiers = [queue for queue, _ in promoted], array(tier for _, tier in promoted)
            new = self._connection.rows(NEWLY_READY, queues, tiers) if promoted else []
            for (queue, tier), n in promoted.items():
                self._counts.add(SCHEDULED, queue, tier, -n)
                self._counts.add(READY, queue, tier, n)
            self._links.due([linked for _, _, linked in rows if linked is not None])
            return promoted.total(), frozenset((queue, tier) for queue, tier in new)

    def look(self, served: frozenset[str] | None, limit: int, stay: bool = False) -> Look:
        """Use one statement as long as nothing is due."""
        with self._connection.transaction():
            self._counts.write()
            behind, queues = self._turns.behind, None if served is None else list(served)
            due, expires, rows = self._first_rows(self._connection.rows_alone, behind, queues)
            new, expired = frozenset[tuple[str, int]](), tuple[ExpiredJob, ...]()
            if (due is not None and due <= 0) or (expires is not None and expires <= 0):
                if expires is not None and expires <= 0:
                    expired, more = self._expiries.sweep(limit)
                    if more:
                        return Look({}, 0.0, expired=expired)
                promoted, new = self._promote(limit)
                self._counts.write()
                due, expires, rows = self._first_rows(self._connection.rows, behind, queues)
                if due is not None and due <= 0 and promoted < limit:
                    due = min(self._connection.value(NEXT_DUE_LATER) or LOCKED_AGAIN, LOCKED_AGAIN)
            if behind and len(rows) < ROWS_OF_A_LOOK:
                _, *first = self._connection.rows(LOOK, "", ROWS_OF_A_LOOK - len(rows), queues, True)
                rows += [row for row in first if row[0] <= behind]
            rows, more = self._turns.shown(rows, stay)
            waiting = waiting_of(row[:3] for row in rows if row[2] > 0)
            self._fresh = {queue: n.fresh for queue, n in waiting.items()}
            return Look(waiting, _seconds(next_look(due, expires)), new, more, behind, expired)

    def _first_rows(
        self, ask: Callable[..., list[Row]], behind: str, queues: list[str] | None
    ) -> tuple[int | None, int | None, list[Row]]:
        """Return the times until a job is due and until one expires, and the first rows of `LOOK`, of which half or more have jobs if
        there are further ones."""
        (_, _, due, expires), *rows = ask(LOOK, behind, ROWS_OF_A_LOOK, queues, False)
        in_counts, needed = sum([row[3] for row in rows]), sum([row[2] > 0 for row in rows])
        last = rows[-1][0] if rows else ""
        if len(rows) == ROWS_OF_A_LOOK and 2 * needed < ROWS_OF_A_LOOK:
            (_, _, due, expires), *rows = ask(LOOK, behind, ROWS_OF_A_LOOK, queues, True)
            last = last if len(rows) == ROWS_OF_A_LOOK else LAST_QUEUE
        self._counts.fold(behind, last, in_counts, needed)
        return due, expires, rows

    def make_due(self, handlers: Collection[str], within: float, limit: int) -> int:
        with self._connection.transaction():
            return len(self._connection.column(MAKE_DUE, microseconds(within), list(handlers), limit))

    def paused(self) -> frozenset[str]:
        with self._connection.snapshot():
            return frozenset(self._connection.column(PAUSED))

    def claim(self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve) -> list[Lease]:
        """Let a single claim commit by itself, if it is the last statement of its transaction and the only one that writes."""
        if self._owner.id is None:
            raise StoreError("claim: join first, so that the leases have an owner")
        leases = self._claim_all(takes, ttl, resolve)
        if self._turns.partial:
            self._turns.claimed(takes, {lease.queue for lease in leases})
        return leases

    def claim_ready(self, queue: str, ids: Sequence[int], ttl: float, resolve: Resolve) -> list[Lease]:
        """Claim the first of these ready jobs, whose rows are locked, that fit into one claim."""
        while True:
            lease = self._lease(self._policies.known(queue, resolve), ttl)
            rows = self._connection.rows(CLAIM_READY, queue, array(ids), *lease)
            if not rows or rows[0][LEASE_ID] is not None:
                return leases_from(rows)
            self._policies.learn(queue, {row[LEASE_HANDLER] for row in rows}, resolve)

    def _lease(self, policies: str, ttl: float) -> tuple[Any, ...]:
        return self._owner.id, microseconds(ttl), policies, self._claim_bytes, self._owner.random_part()

    def _claim_all(self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve) -> list[Lease]:
        with self._connection.transaction(single=True):
            fresh = [take for take in takes if not take.max_retries_claimed]
            parts = [fresh[start : start + MAX_QUEUES] for start in range(0, len(fresh), MAX_QUEUES)]
            parts += [[take] for take in takes if take.max_retries_claimed]
            alone = len(parts) == 1 and self._connection.is_single
            ask = self._connection.rows_alone if alone else self._connection.rows
            return [lease for part in parts for lease in self._claim(ask, part, ttl, resolve)]

    def _claim(
        self, ask: Callable[..., list[Row]], takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve
    ) -> list[Lease]:
        """Claim fresh jobs, or also retries if there is one request."""
        if to_move := self._cursors.to_move([take.queue for take in takes]):
            for queue, *first in ask(FIRST_READY, list(to_move), *_arrays(to_move.values())):
                self._cursors.move(queue, None if first[0] is None else Position(*first))
        began = time.monotonic()
        positions = [self._cursors.position(take.queue, take.urgent, began) for take in takes]
        rows = self._claimed(ask, takes, positions, ttl, resolve)
        urgent = {take.queue: take.urgent for take in takes}
        for queue, its in groupby(rows, itemgetter(LEASE_QUEUE)):
            fresh = [row for row in its if row[LEASE_TIER] == 0 and row[LEASE_PRIORITY] < urgent[queue]]
            if fresh:
                self._cursors.claimed(queue, len(fresh), Position(fresh[-1][LEASE_PRIORITY], fresh[-1][_AGE]))
        now = time.monotonic()
        for take, position in zip(takes, positions, strict=True):
            if position is WHOLE:
                self._cursors.looked_at_whole(take.queue, now - began, now)
        return leases_from(rows)

    def _claimed(
        self, ask: Callable[..., list[Row]], takes: Sequence[ClaimRequest], positions: Sequence[Position], ttl: float,
        resolve: Resolve,
    ) -> list[Row]:  # fmt: skip
        queues, take = [take.queue for take in takes], takes[0]
        while True:
            known = (
                self._policies.known(take.queue, resolve)
                if take.max_retries_claimed
                else self._policies.known_of(queues, resolve)
            )
            lease = self._lease(known, ttl)
            if take.max_retries_claimed:
                waiting = self._fresh.get(take.queue, take.limit)
                rule = (take.retries_first, take.max_retries_claimed, take.urgent)
                rows = ask(CLAIM, take.queue, take.limit, *lease, *positions[0], waiting, *rule)
            else:
                rows = ask(CLAIM_FRESH, queues, array([take.limit for take in takes]), *lease, *_arrays(positions))
            if not rows or rows[0][LEASE_ID] is not None:
                return rows
            for queue, its in groupby(rows, itemgetter(LEASE_QUEUE)):
                self._policies.learn(queue, {row[LEASE_HANDLER] for row in its}, resolve)


_AGE = -2
"""The position of `age` in a row of a claim."""


def _arrays(positions: Iterable[Position]) -> list[str]:
    return [array(numbers) for numbers in zip(*positions, strict=True)]


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else max(0.0, micros / 1e6)
