"""Settle, extend and recover in PostgreSQL: fenced inside the statement itself by token, state and, in recovery, deadline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from supervisor.errors import RowsLocked
from supervisor.jobs import JobState, Lease, Outcome
from supervisor.retry import KEEP, RESET, expired_count_change
from supervisor.stores.codes import FAILED, IN_FLIGHT, LEFT, PENDING, SCHEDULED, SUCCEEDED
from supervisor.stores.postgres.claim import ALL, LEASE, NOW, TEXTS_OF_LEASE, Claims, leases_from
from supervisor.stores.postgres.connection import array, packed
from supervisor.stores.postgres.owner_lock import is_gone
from supervisor.stores.records import (
    MAX_ATTEMPTS_KEPT,
    ExpiredLease,
    by_queue_and_tier,
    code_of_state,
    failure_record,
    microseconds,
    require_seen,
)

_SUCCEEDED = JobState.SUCCEEDED
_ID = itemgetter(0)

# Not to be read through the index of all that is in flight: the ids lead to few rows, however many are.
FENCE = f"jobs.id = it.id and jobs.token = it.token and jobs.state + 0 = {IN_FLIGHT}"

# Batches come in the order of the ids, and are joined to the jobs row by row, so that two that meet lock in one order.
SUCCEED = f"""update {{s}}.jobs set state = {SUCCEEDED}, settled = jobs.token, owner = null, lease_until = null, expired_count = 0,
    finished_at = {NOW}, result = it.result, started_at = coalesce({NOW} - it.took, started_at)
  from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) as it(id, token, took, result)
  where {FENCE} returning jobs.id, jobs.token"""

DISPOSE = f"""update {{s}}.jobs set state = it.state, owner = null, lease_until = null, result = it.result,
    settled = case when it.seen is null then jobs.token else jobs.settled end, retries = retries + it.counted,
    due_at = coalesce({NOW} + it.delay, due_at), tier = case it.counted when 1 then 1 else tier end,
    age = case it.counted when 1 then coalesce({NOW} + it.delay, age) else age end,
    expired_count = case it.expiry when {RESET} then 0 when {KEEP} then expired_count else expired_count + 1 end,
    finished_at = case when it.state >= {SUCCEEDED} then {NOW} end,
    started_at = coalesce({NOW} - (it.took * 1e6)::bigint, started_at)
  from json_to_recordset($1::json) as it(id bigint, token bigint, took float8, result text, seen bigint, state smallint,
    delay bigint, counted int, expiry int)
  where {FENCE}
    and (it.seen is null or jobs.lease_until = it.seen)
  returning jobs.id, jobs.token"""

# Whoever locks several jobs by more than one statement first locks them all, in the order of the ids.
LOCK = "select id from {s}.jobs where id = any($1::bigint[]) order by id for no key update"

SETTLED = """select it.id, it.token from unnest($1::bigint[], $2::bigint[]) as it(id, token)
  join {s}.jobs on jobs.id = it.id and jobs.settled = it.token"""

_OF_LEASES = f"""from unnest($2::bigint[], $3::bigint[]) as it(id, token)
  where {FENCE} returning jobs.id, jobs.token"""
EXTEND = f"update {{s}}.jobs set lease_until = {NOW} + $1 {_OF_LEASES}"
MARK = f"update {{s}}.jobs set started_at = coalesce(started_at, {NOW} + $1) {_OF_LEASES}"

HELD = f"select id, token from {{s}}.jobs where state = {IN_FLIGHT} and owner = $1 order by id"
LEASES = (
    f"select {LEASE} from {{s}}.jobs where id = any($2::bigint[]) and state = {IN_FLIGHT} and owner = $1 order by id"
)

FORGOTTEN_AFTER = 3_600_000_000
"""Microseconds that an owner without leases is remembered after it is off the list: only its own machine can end the programs
that it has left there, and does when a supervisor runs there again."""
LOOKED_AT_LOCKS = 1000  # leases
OWNERS = f"""select id, owner, state, place, {NOW} > unseen_after + {FORGOTTEN_AFTER},
    exists (select 1 from {{s}}.jobs where jobs.state = {IN_FLIGHT} and jobs.owner = supervisors.id)
  from {{s}}.supervisors where id is distinct from $1 order by id"""
EXPIRED_LEASES = f"""select lease_until, started_at, expired_count, owner, {LEASE.replace(TEXTS_OF_LEASE, "'', null")}
  from (select *, coalesce(owner <> all($2::bigint[]), true) as lives from {{s}}.jobs
    where state = {IN_FLIGHT} and owner is distinct from $1) as jobs
  where (lease_until <= {NOW} or not lives) and (lives, lease_until, id) > ($3::boolean, $4::bigint, $5::bigint)
  order by lives, lease_until, id limit $6"""

ADD_ATTEMPTS = f"""insert into {{s}}.attempts(job_id, at, record)
  select job_id, coalesce(nullif(at, 0), {NOW}), record
  from json_to_recordset($1::json) as it(job_id bigint, at bigint, record text)"""
THIN_OUT = f"""delete from {{s}}.attempts using (
    select id, row_number() over (partition by job_id order by id) as from_first,
      row_number() over (partition by job_id order by id desc) as from_last
    from {{s}}.attempts where job_id = any($1::bigint[])) as it
  where attempts.id = it.id and from_first > 1 and from_last >= {MAX_ATTEMPTS_KEPT}"""
ADD_DEAD_LETTERS = f"""insert into {{s}}.dead_letters as had(job_id, state, due_at)
  select id, {PENDING}, {NOW} from unnest($1::bigint[]) as it(id)
  on conflict(job_id) do update set state = {PENDING}, token = had.token + 1, owner = null, due_at = excluded.due_at,
    tries = 0, accepted = '[]'"""
OFFER_AGAIN = f"""update {{s}}.dead_letters set due_at = {NOW} where job_id = any(array(
    select job_id from {{s}}.dead_letters where state = {PENDING} and owner = $1 for no key update skip locked))"""
FORGET_OWNER = """delete from {s}.supervisors where id = any(array(
    select id from {s}.supervisors where id = $1 for update skip locked))"""

Claim = tuple[int, int]
"""(id, token)"""


class Settles(Claims):
    on_owner_gone: Callable[[str], None]

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        if not self.skips_locked:
            return self._settle(outcomes)
        with self.transaction():
            locked = self.to_pass_by("jobs", "id", [outcome.lease.id for outcome in outcomes])
            locked |= self.to_pass_by(
                "dead_letters", "job_id", [outcome.lease.id for outcome in outcomes if outcome.dead_letter]
            )
            if not locked:
                return self._settle(outcomes)
        raise RowsLocked(f"{self.url}: rows are locked by another session", frozenset(locked))

    def _settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        won = [outcome for outcome in outcomes if outcome.state is _SUCCEEDED and outcome.seen is None]
        rest = []
        if len(won) != len(outcomes):
            rest = [outcome for outcome in outcomes if outcome.state is not _SUCCEEDED or outcome.seen is not None]
        with self.transaction():
            if won and rest and not self.skips_locked:
                self.later(LOCK, array(outcome.lease.id for outcome in outcomes))
            return [*self._settled(self._succeed, won), *self._settled(self._dispose, rest)]

    def recover(self, outcomes: Sequence[Outcome]) -> list[int]:
        """What somebody else is changing at this moment is stale: it waits for nobody, who may be cut off in the middle."""
        require_seen(outcomes)
        with self.transaction():
            locked = self.locked("jobs", "id", [outcome.lease.id for outcome in outcomes])
            locked |= self.to_pass_by(
                "dead_letters", "job_id", [outcome.lease.id for outcome in outcomes if outcome.dead_letter]
            )
            free = [outcome for outcome in outcomes if outcome.lease.id not in locked]
            return [*sorted(locked), *self._settled(self._dispose, free)]

    def extend(self, leases: Sequence[Lease], ttl: float, started: Sequence[Lease]) -> list[int]:
        with self.transaction():
            locked = (
                self.to_pass_by("jobs", "id", [lease[0] for lease in (*leases, *started)])
                if self.skips_locked
                else None
            )
            if locked:
                leases = [lease for lease in leases if lease[0] not in locked]
                started = [lease for lease in started if lease[0] not in locked]
            return sorted(self._touch(EXTEND, microseconds(ttl), leases) | self._touch(MARK, 0, started))

    def held(self) -> list[tuple[int, int]]:
        with self.snapshot():
            return [(id, token) for id, token in self.rows(HELD, self.owner_id)]

    def leases(self, ids: Sequence[int]) -> list[Lease]:
        with self.snapshot():
            return leases_from(self.rows(LEASES, self.owner_id, array(ids)))

    # settling

    def _settled(self, settle: Callable[[Sequence[Outcome]], set[Claim]], outcomes: Sequence[Outcome]) -> list[int]:
        """Gives the stale ids. A job may stand more than once in a batch: what it says first counts."""
        if not outcomes:
            return []
        by_claim = {(outcome[0][0], outcome[0][1]): outcome for outcome in reversed(outcomes)}
        accepted = settle([by_claim[claim] for claim in sorted(by_claim)])
        if len(accepted) == len(outcomes):
            return []
        return self._stale(outcomes, accepted)

    def _stale(self, outcomes: Sequence[Outcome], accepted: set[Claim]) -> list[int]:
        """Those that are neither accepted nor settled before under the same token."""
        doubtful = [outcome for outcome in outcomes if outcome[0][:2] not in accepted]
        before = set(self.rows(SETTLED, *_pairs(outcome.lease for outcome in doubtful)))
        return [it.lease.id for it in doubtful if it.seen is not None or it[0][:2] not in before]

    def _succeed(self, outcomes: Sequence[Outcome]) -> set[Claim]:
        tooks = array(None if outcome[3] is None else int(outcome[3] * 1e6) for outcome in outcomes)
        results = [outcome[2] for outcome in outcomes]
        leases = [outcome[0] for outcome in outcomes]
        there = set(self.rows(SUCCEED, *_pairs(leases), tooks, results if any(results) else None))
        accepted = leases if len(there) == len(leases) else [lease for lease in leases if lease[:2] in there]
        for (queue, tier), n in by_queue_and_tier(accepted).items():
            self.count(IN_FLIGHT, queue, tier, -n)
            self.count(SUCCEEDED, queue, tier, n)
        return there

    def _dispose(self, outcomes: Sequence[Outcome]) -> set[Claim]:
        accepted = set(self.rows(DISPOSE, packed([_disposed(outcome) for outcome in outcomes])))
        self._book([outcome for outcome in outcomes if outcome[0][:2] in accepted])
        return accepted

    def _book(self, outcomes: Sequence[Outcome]) -> None:
        """What follows from outcomes that were accepted: counts, attempts, letters."""
        moves = Counter((o.lease.queue, o.lease.tier, o.counted, code_of_state(o)) for o in outcomes)
        for (queue, tier, counted, state), n in moves.items():
            self.count(IN_FLIGHT, queue, tier, -n)
            self.count(state, queue, 1 if counted else tier, n)
        failures = [_attempt(outcome) for outcome in outcomes if outcome.failure is not None]
        if failures:
            self.later(ADD_ATTEMPTS, packed(failures))
            if not self.skips_locked:  # somebody may have locked them, and the next failure thins them out
                self.later(THIN_OUT, array(failure["job_id"] for failure in failures))
        dead_letters = [outcome.lease.id for outcome in outcomes if outcome.dead_letter]
        if dead_letters:
            self.later(ADD_DEAD_LETTERS, array(dead_letters))

    def _touch(self, statement: str, time: int, leases: Sequence[Lease]) -> set[int]:
        """The ids whose lease is no longer theirs."""
        if not leases:
            return set()
        there = self.rows(statement, time, *_pairs(sorted(leases, key=_ID)))
        if len(there) == len(leases):
            return set()
        return {id for id, _ in {lease[:2] for lease in leases}.difference(there)}

    # recovery

    def expired_leases(self, limit: int, after: ExpiredLease | None = None) -> list[ExpiredLease]:
        """On the way, owners that are gone and have no lease left are forgotten. While somebody has locked its row, a lease is not
        shown whose owner may live and wait for the same lock: whoever watches it begins anew once it is free, and the owner,
        which extends or settles as soon as it can, comes first. Many at once are of a machine that is lost."""
        with self.transaction():
            owners = {row[0]: row[1:] for row in self.rows(OWNERS, self.owner_id)}
            gone = {id for id, (_, state, place, *_) in owners.items() if state == LEFT or is_gone(place)}
            behind = (False, ALL, ALL) if after is None else after.place
            rows = self.rows(EXPIRED_LEASES, self.owner_id, array(gone), *behind, limit)
            if len(rows) < min(limit, LOOKED_AT_LOCKS):
                locked = self.held_by_others("jobs", "id", [row[4] for row in rows if row[3] not in gone])
                rows = [row for row in rows if row[4] not in locked]
            for id, (owner, _, _, long_ago, holds) in owners.items():
                if not holds and (id in gone or long_ago):
                    self._forget_owner(id, owner if id in gone else None)
        names = {id: owner for id, (owner, *_) in owners.items()}
        return [
            ExpiredLease(
                lease, until, started is not None, expired_count, names.get(owner, f"owner {owner}"), owner in gone
            )
            for lease, (until, started, expired_count, owner, *_) in zip(
                leases_from(row[4:] for row in rows), rows, strict=True
            )
        ]

    def _forget_owner(self, id: int, gone: str | None) -> None:
        """What it was publishing is offered to the others at once. It waits for nobody who has locked it: there is a next time."""
        if gone is not None:
            self.after_commit(lambda: self.on_owner_gone(gone))
        self.later(FORGET_OWNER, id)
        self.later(OFFER_AGAIN, id)


def _pairs(leases: Iterable[Lease]) -> tuple[str, str]:
    leases = list(leases)
    return array(lease[0] for lease in leases), array(lease[1] for lease in leases)


def _disposed(outcome: Outcome) -> dict[str, Any]:
    state = code_of_state(outcome)
    waits = state not in (SUCCEEDED, FAILED) and (outcome.counted or state == SCHEDULED)
    return {
        "id": outcome.lease.id,
        "token": outcome.lease.token,
        "took": outcome.took,
        "result": outcome.result,
        "seen": outcome.seen,
        "state": state,
        "delay": microseconds(outcome.delay) if waits else None,
        "counted": int(outcome.counted),
        "expiry": expired_count_change(outcome),
    }


def _attempt(outcome: Outcome) -> dict[str, Any]:
    """Its time is the database's, unless the failure has one of its own."""
    assert outcome.failure is not None
    record = failure_record(outcome.failure, outcome.lease, 0)
    return {"job_id": outcome.lease.id, "at": record["at"], "record": packed(record)}
