"""Settle, extend and recover in SQLite: fenced inside the statement itself by token, state and, in recovery, deadline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from supervisor.jobs import JobState, Lease, Outcome
from supervisor.retry import KEEP, RESET, expired_count_change
from supervisor.stores.codes import CANCELLED, FAILED, IN_FLIGHT, LEFT, PENDING, SCHEDULED, SUCCEEDED
from supervisor.stores.records import (
    MAX_ATTEMPTS_KEPT,
    ExpiredLease,
    by_queue_and_tier,
    code_of_state,
    failure_record,
    microseconds,
    require_seen,
)
from supervisor.stores.sqlite.claim import Claims
from supervisor.stores.sqlite.connection import packed
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.policies import BY_ID, LEASE, LIGHT_LEASE, ids_of

_SUCCEEDED = JobState.SUCCEEDED

# The rows are {id: µs that it took, or "µs:result"} under one token: to take nested JSON apart costs as much as all the rest.
SUCCEED = f"""update jobs set state = {SUCCEEDED}, settled = jobs.token, owner = null, lease_until = null, expired_count = 0,
    finished_at = ?1, result = it.result, started_at = coalesce(?1 - it.took, started_at)
  from (select cast(key as integer) as id, iif(type = 'text', substr(value, instr(value, ':') + 1), null) as result,
    iif(type = 'text', nullif(substr(value, 1, instr(value, ':') - 1), ''), value) as took from json_each(?2)) as it
  where jobs.id = it.id and jobs.token = ?3 and jobs.state = {IN_FLIGHT}"""

DISPOSE = f"""update jobs set state = it.state, owner = null, lease_until = null, result = it.result,
    settled = iif(it.seen is null, jobs.token, jobs.settled), retries = retries + it.counted,
    due_at = coalesce(it.due, due_at), tier = iif(it.counted, 1, tier), age = iif(it.counted, coalesce(it.due, age), age),
    expired_count = case it.expiry when {RESET} then 0 when {KEEP} then expired_count else expired_count + 1 end,
    finished_at = it.finished, started_at = coalesce(cast(?1 - it.took * 1e6 as integer), started_at)
  from (select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as token,
    json_extract(value, '$[2]') as took, json_extract(value, '$[3]') as result, json_extract(value, '$[4]') as seen,
    json_extract(value, '$[5]') as state, json_extract(value, '$[6]') as due, json_extract(value, '$[7]') as counted,
    json_extract(value, '$[8]') as expiry, json_extract(value, '$[9]') as finished from json_each(?2)) as it
  where jobs.id = it.id and jobs.token = it.token and jobs.state = {IN_FLIGHT}
    and (it.seen is null or jobs.lease_until = it.seen)"""

LEASED = f"""json_each(?) as it cross join jobs on jobs.id = json_extract(it.value, '$[0]')
  and jobs.token = json_extract(it.value, '$[1]') and jobs.state = {IN_FLIGHT}
  and (json_extract(it.value, '$[2]') is null or jobs.lease_until = json_extract(it.value, '$[2]'))"""
SETTLED = """json_each(?) as it cross join jobs on jobs.id = json_extract(it.value, '$[0]')
  and jobs.settled = json_extract(it.value, '$[1]')"""

EXTEND = f"""update jobs set lease_until = ?1 from (select json_extract(value, '$[0]') as id,
    json_extract(value, '$[1]') as token from json_each(?2)) as it
  where jobs.id = it.id and jobs.token = it.token and jobs.state = {IN_FLIGHT}"""
MARK = EXTEND.replace("lease_until = ?1", "started_at = coalesce(started_at, ?1)")

# Steps from owner to owner in the index, so its cost is the number of owners, not of leases.
OWNERS = f"""(with recursive found(id) as (
    select min(owner) from jobs where state = {IN_FLIGHT}
    union all
    select (select min(owner) from jobs where state = {IN_FLIGHT} and owner > found.id) from found where id is not null)
  select found.id, supervisors.owner, supervisors.state from found left join supervisors on supervisors.id = found.id
  where found.id is not null)"""
EXPIRED = f"""(select * from jobs where state = {IN_FLIGHT} and owner = ? and lease_until <= ? and (lease_until, id) > (?, ?)
  order by lease_until, id limit ?) as jobs"""
_EVER = 2**62
HELD = f"{BY_ID} and jobs.state = {IN_FLIGHT} and jobs.owner = ?"

WITHOUT_LEASES = f"""supervisors where id is not ?
  and not exists (select 1 from jobs where state = {IN_FLIGHT} and owner = supervisors.id)"""
_FORGOTTEN = 86_400_000_000

ADD_ATTEMPTS = """insert into attempts(job_id, record)
  select json_extract(value, '$[0]'), json_extract(value, '$[1]') from json_each(?)"""
CROWDED = f"""json_each(?) as it where {MAX_ATTEMPTS_KEPT} < (select count(*) from attempts where job_id = it.value)"""
THIN_OUT = f"""delete from attempts where job_id = ?1 and id > (select min(id) from attempts where job_id = ?1)
  and id not in (select id from attempts where job_id = ?1 order by id desc limit {MAX_ATTEMPTS_KEPT - 1})"""
ADD_DEAD_LETTERS = f"""insert into dead_letters(job_id, state, due_at) select value, {PENDING}, ?1 from json_each(?2) where true
  on conflict(job_id) do update set state = {PENDING}, token = token + 1, owner = null, due_at = ?1, tries = 0,
    accepted = '[]'"""


class Settles(Claims):
    notifier: Notifier
    on_owner_gone: Callable[[str], None]

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        won = [outcome for outcome in outcomes if outcome.state is _SUCCEEDED and outcome.seen is None]
        if len(won) == len(outcomes):
            rest = []
        else:
            rest = [outcome for outcome in outcomes if outcome.state is not _SUCCEEDED or outcome.seen is not None]
        with self.transaction():
            return [*self._succeed(won), *self._dispose(rest)]

    def recover(self, outcomes: Sequence[Outcome]) -> list[int]:
        require_seen(outcomes)
        with self.transaction():
            return self._dispose(outcomes)

    def extend(self, leases: Sequence[Lease], ttl: float, started: Sequence[Lease]) -> list[int]:
        with self.transaction():
            now = self.now()
            late = self._touch(EXTEND, now + microseconds(ttl), leases) | self._touch(MARK, now, started)
            return sorted(late)

    def held(self) -> list[tuple[int, int]]:
        with self.snapshot():
            rows = self.rows("id, token", f"jobs where state = {IN_FLIGHT} and owner = ?", self.owner_id)
        return [(id, token) for id, token in rows]

    def leases(self, ids: Sequence[int]) -> list[Lease]:
        with self.snapshot():
            return self.leases_from(self.rows(LEASE, HELD, packed(ids), self.owner_id))

    def expired_leases(self, limit: int, after: ExpiredLease | None = None) -> list[ExpiredLease]:
        """On the way, owners that are gone and have no lease left are forgotten."""
        found: list[ExpiredLease] = []
        beside = self.notifier.owners()
        with self.snapshot():
            for id, owner, state in self.rows("id, owner, state", OWNERS):
                if id != self.owner_id:
                    gone = owner is not None and (state == LEFT or self.notifier.is_gone(owner))
                    found += self._expired_of(id, owner or f"owner {id}", gone, limit, after)
            without = self.rows("id, owner, state, seen_at", WITHOUT_LEASES, self.owner_id)
            long_ago = self.now() - _FORGOTTEN
            unlisted = beside.difference(self.column("owner", "supervisors"))
        if unlisted:  # who died before its row was there, or just after it went
            with self.transaction():
                self.after_commit(lambda: self.notifier.remove_dead(unlisted))
        for id, owner, state, seen_at in without:
            gone = state == LEFT or self.notifier.is_gone(owner)
            if gone or seen_at < long_ago:
                self._forget_owner(id, owner if gone else None)
        return sorted(found, key=attrgetter("place"))[:limit]

    def _forget_owner(self, id: int, gone: str | None) -> None:
        """What it was publishing is offered to the others at once. By the file of its lock it is known to be `gone`, so
        that must not go before its row."""
        with self.transaction():
            if gone is not None:
                self.after_commit(lambda: self._bury(gone))
            self.run("delete from supervisors where id = ?", id)
            self.run(f"update dead_letters set due_at = ? where state = {PENDING} and owner = ?", self.now(), id)

    def _bury(self, owner: str) -> None:
        self.on_owner_gone(owner)
        self.notifier.remove(owner)

    def _expired_of(
        self, id: int, owner: str, gone: bool, limit: int, after: ExpiredLease | None
    ) -> list[ExpiredLease]:
        if after is not None and gone and not after.owner_gone:
            return []
        behind = (after.deadline, after.lease.id) if after is not None and after.owner_gone == gone else (-_EVER, 0)
        columns = f"lease_until, started_at, expired_count, {LIGHT_LEASE}"
        rows = self.rows(columns, EXPIRED, id, _EVER if gone else self.now(), *behind, limit)
        leases = self.leases_from(row[3:] for row in rows)
        return [
            ExpiredLease(lease, deadline, started is not None, expired_count, owner, gone)
            for lease, (deadline, started, expired_count, *_) in zip(leases, rows, strict=True)
        ]

    def _succeed(self, outcomes: Sequence[Outcome]) -> list[int]:
        accepted, stale = self._settle(self._run_succeed, outcomes, self.now())
        for (queue, tier), n in by_queue_and_tier([it[0] for it in accepted]).items():
            self.count(IN_FLIGHT, queue, tier, -n)
            self.count(SUCCEEDED, queue, tier, n)
        return stale

    def _run_succeed(self, outcomes: Sequence[Outcome], now: int) -> int:
        by_token: dict[int, dict[int, str | int | None]] = {}
        last: int | None = None
        for outcome in outcomes:
            lease, result, took = outcome[0], outcome[2], outcome[3]
            if lease[1] != last:
                rows = by_token.setdefault(last := lease[1], {})
            micros = None if took is None else int(took * 1e6)
            rows[lease[0]] = micros if result is None else f"{'' if micros is None else micros}:{result}"
        return sum(self.run(SUCCEED, now, packed(rows), token) for token, rows in by_token.items())

    def _dispose(self, outcomes: Sequence[Outcome]) -> list[int]:
        now = self.now()
        accepted, stale = self._settle(self._run_dispose, outcomes, now)
        self._book(accepted, now)
        return stale

    def _run_dispose(self, outcomes: Sequence[Outcome], now: int) -> int:
        return self.run(DISPOSE, now, packed([_disposed(outcome, now) for outcome in outcomes]))

    def _settle(
        self, settle: Callable[[Sequence[Outcome], int], int], outcomes: Sequence[Outcome], now: int
    ) -> tuple[Sequence[Outcome], list[int]]:
        """The accepted and the ids of the stale. Only if the batch met fewer jobs than it should, find out which, and do
        it without them."""
        stale: list[int] = []
        if outcomes:
            self.run("savepoint settle")
            if settle(outcomes, now) != len(outcomes):
                self.run("rollback to settle")
                outcomes, stale = self._sort_out(outcomes)
                settle(outcomes, now)
            self.run("release settle")
        return outcomes, stale

    def _sort_out(self, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[int]]:
        """Those still leased, and the ids of those that are neither that nor settled before under the same token."""
        batch = packed([(outcome.lease.id, outcome.lease.token, outcome.seen) for outcome in outcomes])
        leased = set(self.column("it.key", LEASED, batch))
        settled = set(self.column("it.key", SETTLED, batch))
        accepted: dict[int, Outcome] = {}
        stale: list[int] = []
        for index, outcome in enumerate(outcomes):
            if index in leased:
                accepted.setdefault(outcome.lease.id, outcome)
            elif index not in settled or outcome.seen is not None:
                stale.append(outcome.lease.id)
        return list(accepted.values()), stale

    def _book(self, outcomes: Sequence[Outcome], now: int) -> None:
        """What follows from outcomes that were accepted: counts, attempts, letters."""
        moves = Counter((o.lease.queue, o.lease.tier, o.counted, code_of_state(o)) for o in outcomes)
        for (queue, tier, counted, state), n in moves.items():
            self.count(IN_FLIGHT, queue, tier, -n)
            self.count(state, queue, 1 if counted else tier, n)
        self._keep_failures([outcome for outcome in outcomes if outcome.failure is not None], now)
        dead_letters = [outcome.lease.id for outcome in outcomes if outcome.dead_letter]
        if dead_letters:
            self.run(ADD_DEAD_LETTERS, now, packed(dead_letters))

    def _keep_failures(self, outcomes: Sequence[Outcome], now: int) -> None:
        if not outcomes:
            return
        self.run(ADD_ATTEMPTS, packed([(o.lease.id, packed(_record(o, now))) for o in outcomes]))
        for id in self.column("it.value", CROWDED, packed([outcome.lease.id for outcome in outcomes])):
            self.run(THIN_OUT, id)

    def _touch(self, statement: str, time: int, leases: Sequence[Lease]) -> set[int]:
        """The ids whose lease is no longer theirs."""
        if not leases:
            return set()
        batch = ids_of(leases)
        if self.run(statement, time, batch) == len(leases):
            return set()
        current = set(self.column("it.key", LEASED, batch))
        return {lease.id for index, lease in enumerate(leases) if index not in current}


def _disposed(outcome: Outcome, now: int) -> tuple[Any, ...]:
    return outcome.lease.id, outcome.lease.token, outcome.took, outcome.result, *_where_to(outcome, now)


def _where_to(outcome: Outcome, now: int) -> tuple[Any, ...]:
    state = code_of_state(outcome)
    due = finished = None
    if state in (SUCCEEDED, FAILED, CANCELLED):
        finished = now
    elif outcome.counted or state == SCHEDULED:
        due = now + microseconds(outcome.delay)
    return outcome.seen, state, due, outcome.counted, expired_count_change(outcome), finished


def _record(outcome: Outcome, now: int) -> dict[str, Any]:
    assert outcome.failure is not None
    return failure_record(outcome.failure, outcome.lease, now)
