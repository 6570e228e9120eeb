"""Settle, extend and recover in PostgreSQL: each statement checks the token, the state and, in recovery, the deadline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

from supervisor.errors import RowsLocked
from supervisor.jobs import (
    LEASE_ID,
    LEASE_TOKEN,
    OUTCOME_LEASE,
    OUTCOME_RESULT,
    OUTCOME_TOOK,
    JobState,
    Kind,
    Lease,
    Outcome,
)
from supervisor.retry import KEEP, RESET, SUSPECT, expired_count_change
from supervisor.stores.codes import DELIVERED, FAILED, IN_FLIGHT, PENDING, SCHEDULED, SUCCEEDED
from supervisor.stores.job_reports import JobReport
from supervisor.stores.postgres.connection import NOW, Connection, Row, array, packed
from supervisor.stores.postgres.counts import Counts
from supervisor.stores.postgres.links import Links
from supervisor.stores.postgres.ownership import Ownership
from supervisor.stores.postgres.policies import LEASE, leases_from
from supervisor.stores.postgres.row_locks import DEAD_LETTERS, JOBS, SNOOZES, RowLocks
from supervisor.stores.postgres.snoozes import Snoozes
from supervisor.stores.records import (
    MAX_ATTEMPTS_KEPT,
    by_queue_and_tier,
    code_of_state,
    failure_record,
    microseconds,
    require_seen,
)
from supervisor.stores.sinks import sinks_text

_SUCCEEDED = JobState.SUCCEEDED
_BEHIND_TOKEN: Final = 2

# Batches are in the order of the ids, and are joined to the jobs row by row, so that all lock rows in the same order. `state + 0`
# keeps a statement from the index of all jobs in flight: the ids lead to few rows, however many are in flight.
SUCCEED = f"""
  update {{s}}.jobs set state = {SUCCEEDED}, settled = jobs.token, owner = null, lease_until = null, expired_count = 0,
    finished_at = {NOW}, result = it.result, started_at = coalesce({NOW} - it.took, started_at)
  from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) as it(id, token, took, result)
  where jobs.id = it.id and jobs.token = it.token and jobs.state + 0 = {IN_FLIGHT}
  returning jobs.id, jobs.token, jobs.linked"""

DISPOSE = f"""
  update {{s}}.jobs set state = it.state, owner = null, lease_until = null, result = it.result,
    settled = case when it.seen is null then jobs.token else jobs.settled end, retries = retries + it.counted,
    due_at = coalesce({NOW} + it.delay, due_at), tier = case it.counted when 1 then 1 else tier end,
    age = case it.counted when 1 then coalesce({NOW} + it.delay, age) else age end,
    expired_count = case it.expiry when {RESET} then 0 when {KEEP} then expired_count
      else expired_count + case when started_at is null then (expired_count < {SUSPECT})::int else 2 end end,
    finished_at = case when it.state >= {SUCCEEDED} then {NOW} end,
    started_at = coalesce({NOW} - (it.took * 1e6)::bigint, started_at)
  from json_to_recordset($1::json) as it(id bigint, token bigint, took float8, result text, seen bigint, state smallint,
    delay bigint, counted int, expiry int)
  where jobs.id = it.id and jobs.token = it.token and jobs.state + 0 = {IN_FLIGHT}
    and (it.seen is null or jobs.lease_until = it.seen)
  returning jobs.id, jobs.token, jobs.linked and jobs.state >= {SUCCEEDED}"""

# A transaction that locks several jobs by more than one statement first locks them all, in the order of the ids.
LOCK_JOBS = "select id from {s}.jobs where id = any($1::bigint[]) order by id for no key update"

SETTLED = """
  select it.id, it.token from unnest($1::bigint[], $2::bigint[]) as it(id, token)
  join {s}.jobs on jobs.id = it.id and jobs.settled = it.token"""

EXTEND = f"""
  update {{s}}.jobs set lease_until = {NOW} + $1
  from unnest($2::bigint[], $3::bigint[]) as it(id, token)
  where jobs.id = it.id and jobs.token = it.token and jobs.state + 0 = {IN_FLIGHT}
  returning jobs.id, jobs.token"""
MARK_STARTED = f"""
  update {{s}}.jobs set started_at = coalesce(started_at, {NOW} + $1)
  from unnest($2::bigint[], $3::bigint[]) as it(id, token)
  where jobs.id = it.id and jobs.token = it.token and jobs.state + 0 = {IN_FLIGHT}
  returning jobs.id, jobs.token"""

HELD = f"select id, token from {{s}}.jobs where state = {IN_FLIGHT} and owner = $1 order by id"
LEASES = f"""
  select {LEASE} from {{s}}.jobs where id = any($2::bigint[]) and state = {IN_FLIGHT} and owner = $1 order by id"""

ADD_ATTEMPTS = f"""
  insert into {{s}}.attempts(job_id, at, record)
  select job_id, coalesce(nullif(at, 0), {NOW}), record
  from json_to_recordset($1::json) as it(job_id bigint, at bigint, record text)"""
THIN_OUT_ATTEMPTS = f"""
  delete from {{s}}.attempts using (
    select id, row_number() over (partition by job_id order by id) as from_first,
      row_number() over (partition by job_id order by id desc) as from_last
    from {{s}}.attempts where job_id = any($1::bigint[])) as it
  where attempts.id = it.id and from_first > 1 and from_last >= {MAX_ATTEMPTS_KEPT}"""
# The lock keeps each job from being deleted meanwhile, and its report from being left behind.
KEEP_REPORTS = f"""
  insert into {{s}}.reports as old(job_id, progress, progress_at, log)
  select it.id, it.progress, case when it.progress is not null then {NOW} end, it.log
  from {{s}}.jobs join unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) as it(id, token, progress, log)
    on jobs.id = it.id and jobs.token = it.token
  order by it.id for key share of jobs skip locked
  on conflict(job_id) do update set progress = coalesce(excluded.progress, old.progress),
    progress_at = coalesce(excluded.progress_at, old.progress_at), log = coalesce(excluded.log, old.log)"""
ADD_DEAD_LETTERS = f"""
  insert into {{s}}.dead_letters as old(job_id, state, due_at, owed)
  select id, $3, {NOW}, $2 from unnest($1::bigint[]) as it(id)
  on conflict(job_id) do update set state = excluded.state, token = old.token + 1, owner = null, due_at = excluded.due_at,
    tries = 0, owed = excluded.owed, accepted = '[]'"""

Claim = tuple[int, int]
"""(id, token)"""
Settle = Callable[[Sequence[Outcome], list[int]], set[Claim]]


class Settles:
    def __init__(self, connection: Connection, counts: Counts, locks: RowLocks, owner: Ownership, links: Links) -> None:
        self._connection, self._counts, self._locks, self._owner = connection, counts, locks, owner
        self._snoozes = Snoozes(connection)
        self.snoozes = self._snoozes.found
        self._links = links

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        if not self._locks.skips_locked:
            return self._settle_all(outcomes)
        with self._connection.transaction():
            locked = self._locks.to_skip(JOBS, [outcome.lease.id for outcome in outcomes])
            locked |= self._locked_dead_letters(outcomes) | self._locks.to_skip(SNOOZES, _snoozed(outcomes))
            if not locked:
                return self._settle_all(outcomes)
        raise RowsLocked(f"{self._connection.url}: rows are locked by another session", frozenset(locked))

    def recover(self, outcomes: Sequence[Outcome]) -> list[int]:
        """Settle expired leases. A job that another session is changing at this moment is stale: that session may be cut off, so
        that the wait for it would be long."""
        require_seen(outcomes)
        with self._connection.transaction():
            locked = self._locks.locked(JOBS, [outcome.lease.id for outcome in outcomes])
            locked |= self._locked_dead_letters(outcomes)
            free = [outcome for outcome in outcomes if outcome.lease.id not in locked]
            linked: list[int] = []
            stale = self._settle(self._dispose, free, linked)
            self._links.ended(linked)
            return [*sorted(locked), *stale]

    def extend(self, leases: Sequence[Lease], ttl: float, started: Sequence[Lease]) -> list[int]:
        with self._connection.transaction():
            if self._locks.skips_locked:
                locked = self._locks.to_skip(JOBS, [lease[LEASE_ID] for lease in (*leases, *started)])
                leases = [lease for lease in leases if lease[LEASE_ID] not in locked]
                started = [lease for lease in started if lease[LEASE_ID] not in locked]
            stale = self._touch(EXTEND, microseconds(ttl), leases) | self._touch(MARK_STARTED, 0, started)
            return sorted(stale)

    def keep_reports(self, reports: Sequence[JobReport]) -> None:
        ids, tokens, progress, logs = zip(*reports, strict=True)
        with self._connection.transaction():
            self._connection.run(KEEP_REPORTS, array(ids), array(tokens), list(progress), list(logs))

    def held(self) -> list[tuple[int, int]]:
        with self._connection.snapshot():
            return [(id, token) for id, token in self._connection.rows(HELD, self._owner.id)]

    def leases(self, ids: Sequence[int]) -> list[Lease]:
        with self._connection.snapshot():
            return leases_from(self._connection.rows(LEASES, self._owner.id, array(ids)))

    def _locked_dead_letters(self, outcomes: Sequence[Outcome]) -> set[int]:
        return self._locks.to_skip(DEAD_LETTERS, [outcome.lease.id for outcome in outcomes if outcome.dead_letter])

    def _settle_all(self, outcomes: Sequence[Outcome]) -> list[int]:
        succeeded = [outcome for outcome in outcomes if outcome.state is _SUCCEEDED and outcome.seen is None]
        rest = []
        if len(succeeded) != len(outcomes):
            rest = [outcome for outcome in outcomes if outcome.state is not _SUCCEEDED or outcome.seen is not None]
        with self._connection.transaction():
            if succeeded and rest and not self._locks.skips_locked:
                self._connection.later(LOCK_JOBS, array(outcome.lease.id for outcome in outcomes))
            linked: list[int] = []
            stale = [*self._settle(self._succeed, succeeded, linked), *self._settle(self._dispose, rest, linked)]
            self._links.ended(linked)  # once, so that all sessions lock keys in one order
            return stale

    def _settle(self, settle: Settle, outcomes: Sequence[Outcome], linked: list[int]) -> list[int]:
        """Return the stale ids, and add the ended jobs that others may wait for to `linked`. A job may be in a batch more than once: its
        first outcome counts."""
        if not outcomes:
            return []
        by_claim = {
            (outcome[OUTCOME_LEASE][LEASE_ID], outcome[OUTCOME_LEASE][LEASE_TOKEN]): outcome
            for outcome in reversed(outcomes)
        }
        accepted = settle([by_claim[claim] for claim in sorted(by_claim)], linked)
        if len(accepted) == len(outcomes):
            return []
        return self._stale(outcomes, accepted)

    def _stale(self, outcomes: Sequence[Outcome], accepted: set[Claim]) -> list[int]:
        """Return the ids of outcomes that are neither accepted now nor were settled before under the same token."""
        rest = [outcome for outcome in outcomes if outcome.lease[:_BEHIND_TOKEN] not in accepted]
        before = set(self._connection.rows(SETTLED, *_pairs(outcome.lease for outcome in rest)))
        return [it.lease.id for it in rest if it.seen is not None or it.lease[:_BEHIND_TOKEN] not in before]

    def _succeed(self, outcomes: Sequence[Outcome], linked: list[int]) -> set[Claim]:
        tooks = array(
            None if outcome[OUTCOME_TOOK] is None else int(outcome[OUTCOME_TOOK] * 1e6) for outcome in outcomes
        )
        results = [outcome[OUTCOME_RESULT] for outcome in outcomes]
        leases = [outcome[OUTCOME_LEASE] for outcome in outcomes]
        values = (*_pairs(leases), tooks, results if any(results) else None)
        changed = _changed(self._connection.rows(SUCCEED, *values), linked)
        accepted = (
            leases if len(changed) == len(leases) else [lease for lease in leases if lease[:_BEHIND_TOKEN] in changed]
        )
        for (queue, tier), n in by_queue_and_tier(accepted).items():
            self._counts.add(IN_FLIGHT, queue, tier, -n)
            self._counts.add(SUCCEEDED, queue, tier, n)
        return changed

    def _dispose(self, outcomes: Sequence[Outcome], linked: list[int]) -> set[Claim]:
        rows = self._connection.rows(DISPOSE, packed([_disposed(outcome) for outcome in outcomes]))
        changed = _changed(rows, linked)
        self._record([outcome for outcome in outcomes if outcome.lease[:_BEHIND_TOKEN] in changed])
        return changed

    def _record(self, outcomes: Sequence[Outcome]) -> None:
        """Write the counts, attempts and dead letters that follow from accepted outcomes."""
        kinds = Counter((o.lease.queue, o.lease.tier, o.counted, code_of_state(o)) for o in outcomes)
        for (queue, tier, counted, state), n in kinds.items():
            self._counts.add(IN_FLIGHT, queue, tier, -n)
            self._counts.add(state, queue, 1 if counted else tier, n)
        failures = [_attempt(outcome) for outcome in outcomes if outcome.failure is not None]
        if failures:
            self._connection.later(ADD_ATTEMPTS, packed(failures))
            if not self._locks.skips_locked:  # attempts may be locked; the next failure thins them out
                self._connection.later(THIN_OUT_ATTEMPTS, array(failure["job_id"] for failure in failures))
        if snoozed := _snoozed(outcomes):
            self._snoozes.add(snoozed)
        dead_letters = [outcome.lease.id for outcome in outcomes if outcome.dead_letter]
        if dead_letters:
            sinks = self._owner.owed()
            state = PENDING if sinks else DELIVERED
            self._connection.later(ADD_DEAD_LETTERS, array(dead_letters), sinks_text(sinks), state)

    def _touch(self, statement: str, time: int, leases: Sequence[Lease]) -> set[int]:
        """Run the statement on these leases; return the ids of those that are stale."""
        if not leases:
            return set()
        changed = self._connection.rows(statement, time, *_pairs(sorted(leases, key=itemgetter(LEASE_ID))))
        if len(changed) == len(leases):
            return set()
        return {id for id, _ in {lease[:_BEHIND_TOKEN] for lease in leases}.difference(changed)}


def _changed(rows: Sequence[Row], linked: list[int]) -> set[Claim]:
    """Return the claims of the rows, and add those that are linked."""
    linked += [id for id, _, is_linked in rows if is_linked]
    return {row[:_BEHIND_TOKEN] for row in rows}


def _pairs(leases: Iterable[Lease]) -> tuple[str, str]:
    leases = list(leases)
    return array(lease[LEASE_ID] for lease in leases), array(lease[LEASE_TOKEN] for lease in leases)


def _snoozed(outcomes: Iterable[Outcome]) -> list[int]:
    return [outcome.lease.id for outcome in outcomes if outcome.kind is Kind.SNOOZED]


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
    """Return the attempt to store. The database sets its time, unless the failure has one of its own."""
    assert outcome.failure is not None
    record = failure_record(outcome.failure, outcome.lease, 0)
    return {"job_id": outcome.lease.id, "at": record["at"], "record": packed(record)}
