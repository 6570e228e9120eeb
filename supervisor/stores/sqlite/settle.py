"""Settle, extend and recover in SQLite: each statement checks the token, the state and, in recovery, the deadline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from supervisor.jobs import (
    LEASE_ID,
    LEASE_TOKEN,
    OUTCOME_LEASE,
    OUTCOME_RESULT,
    OUTCOME_STATE,
    OUTCOME_TOOK,
    JobState,
    Kind,
    Lease,
    Outcome,
)
from supervisor.retry import KEEP, RESET, SUSPECT, expired_count_change
from supervisor.stores.codes import CANCELLED, DELIVERED, FAILED, IN_FLIGHT, PENDING, SCHEDULED, SUCCEEDED
from supervisor.stores.job_reports import JobReport
from supervisor.stores.records import (
    MAX_ATTEMPTS_KEPT,
    by_queue_and_tier,
    code_of_state,
    failure_record,
    microseconds,
    require_seen,
)
from supervisor.stores.sinks import sinks_text
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.links import Links
from supervisor.stores.sqlite.ownership import Ownership
from supervisor.stores.sqlite.policies import Policies
from supervisor.stores.sqlite.snoozes import Snoozes
from supervisor.stores.sqlite.texts import HEADERS, PAYLOAD

_SUCCEEDED = JobState.SUCCEEDED

_SUCCEED = f"""
  update jobs set state = {SUCCEEDED}, settled = jobs.token, owner = null, lease_until = null, expired_count = 0,
    finished_at = ?1, result = %s, started_at = coalesce(?1 - %s, started_at)
  from json_each(?2) as it
  where jobs.id = cast(it.key as integer) and jobs.token = ?3 and jobs.state = {IN_FLIGHT}"""
# The batch is {id: µs that it took, or null} for one token: to read nested JSON costs as much as all the rest.
SUCCEED = _SUCCEED % ("null", "it.value")
# The batch is {id: "µs:result", or ":result"}.
SUCCEED_WITH_RESULT = _SUCCEED % (
    "substr(it.value, instr(it.value, ':') + 1)",
    "nullif(substr(it.value, 1, instr(it.value, ':') - 1), '')",
)

DISPOSE = f"""
  update jobs set state = it.state, owner = null, lease_until = null, result = it.result,
    settled = iif(it.seen is null, jobs.token, jobs.settled), retries = retries + it.counted,
    due_at = coalesce(it.due, due_at), tier = iif(it.counted, 1, tier), age = iif(it.counted, coalesce(it.due, age), age),
    expired_count = case it.expiry when {RESET} then 0 when {KEEP} then expired_count
      else expired_count + iif(started_at is null, expired_count < {SUSPECT}, 2) end,
    finished_at = it.finished, started_at = coalesce(cast(?1 - it.took * 1e6 as integer), started_at)
  from (
    select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as token, json_extract(value, '$[2]') as took,
      json_extract(value, '$[3]') as result, json_extract(value, '$[4]') as seen, json_extract(value, '$[5]') as state,
      json_extract(value, '$[6]') as due, json_extract(value, '$[7]') as counted, json_extract(value, '$[8]') as expiry,
      json_extract(value, '$[9]') as finished
    from json_each(?2)) as it
  where jobs.id = it.id and jobs.token = it.token and jobs.state = {IN_FLIGHT}
    and (it.seen is null or jobs.lease_until = it.seen)"""

# Both select indexes in a batch of [id, token, deadline or null]: of jobs still leased so, of jobs settled under that token.
STILL_LEASED = f"""
  select json_group_array(it.key) from json_each(?) as it cross join jobs on jobs.id = json_extract(it.value, '$[0]')
    and jobs.token = json_extract(it.value, '$[1]') and jobs.state = {IN_FLIGHT}
    and (json_extract(it.value, '$[2]') is null or jobs.lease_until = json_extract(it.value, '$[2]'))"""
SETTLED_BEFORE = """
  select json_group_array(it.key) from json_each(?) as it cross join jobs on jobs.id = json_extract(it.value, '$[0]')
    and jobs.settled = json_extract(it.value, '$[1]')"""

_OF_LEASES = f"""
  from (select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as token from json_each(?2)) as it
  where jobs.id = it.id and jobs.token = it.token and jobs.state = {IN_FLIGHT}"""
EXTEND = f"update jobs set lease_until = ?1 {_OF_LEASES}"
MARK_STARTED = f"update jobs set started_at = coalesce(started_at, ?1) {_OF_LEASES}"

HELD = Select("id, token", f"from jobs where state = {IN_FLIGHT} and owner = ?")
LEASES = Select(
    f"""jobs.id, token, handler, queue, {PAYLOAD}, {HEADERS}, retries, priority, tier,
      due_at, created_at, policy, expired_count, options""",
    f"""from json_each(?) as it
      cross join jobs on jobs.id = it.value and jobs.state = {IN_FLIGHT} and jobs.owner = ?""",
)

# The batch is a list of [id, token, progress, log], the last two as text or null.
KEEP_REPORTS = """
  insert into reports(job_id, progress, progress_at, log)
  select id, progress, iif(progress is null, null, ?1), log
  from (
    select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as token, json_extract(value, '$[2]') as progress,
      json_extract(value, '$[3]') as log
    from json_each(?2)) as it
  where exists (select 1 from jobs where jobs.id = it.id and jobs.token = it.token)
  on conflict(job_id) do update set progress = coalesce(excluded.progress, progress),
    progress_at = coalesce(excluded.progress_at, progress_at), log = coalesce(excluded.log, log)"""

ADD_ATTEMPTS = """
  insert into attempts(job_id, record)
  select json_extract(value, '$[0]'), json_extract(value, '$[1]') from json_each(?)"""
WITH_TOO_MANY_ATTEMPTS = f"""
  select json_group_array(it.value) from json_each(?) as it
  where {MAX_ATTEMPTS_KEPT} < (select count(*) from attempts where job_id = it.value)"""
THIN_OUT_ATTEMPTS = f"""
  delete from attempts where job_id = ?1 and id > (select min(id) from attempts where job_id = ?1)
    and id not in (select id from attempts where job_id = ?1 order by id desc limit {MAX_ATTEMPTS_KEPT - 1})"""
ADD_DEAD_LETTERS = """
  insert into dead_letters(job_id, state, due_at, owed) select value, ?4, ?1, ?3 from json_each(?2) where true
  on conflict(job_id) do update set state = ?4, token = token + 1, owner = null, due_at = ?1, tries = 0, owed = ?3,
    accepted = '[]'"""


class Settles:
    def __init__(self, connection: Connection, policies: Policies, owner: Ownership, links: Links) -> None:
        self._connection, self._policies, self._owner, self._links = connection, policies, owner, links
        self._snoozes = Snoozes(connection)
        self.snoozes = self._snoozes.found

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        succeeded = [outcome for outcome in outcomes if outcome[OUTCOME_STATE] is _SUCCEEDED and outcome.seen is None]
        if len(succeeded) == len(outcomes):
            rest = []
        else:
            rest = [outcome for outcome in outcomes if outcome.state is not _SUCCEEDED or outcome.seen is not None]
        with self._connection.transaction():
            stale = self._succeed(succeeded) if succeeded else []
            return [*stale, *self._dispose(rest)] if rest else stale

    def recover(self, outcomes: Sequence[Outcome]) -> list[int]:
        require_seen(outcomes)
        with self._connection.transaction():
            return self._dispose(outcomes)

    def extend(self, leases: Sequence[Lease], ttl: float, started: Sequence[Lease]) -> list[int]:
        with self._connection.transaction():
            now = self._connection.now()
            stale = self._touch(EXTEND, now + microseconds(ttl), leases) | self._touch(MARK_STARTED, now, started)
            return sorted(stale)

    def keep_reports(self, reports: Sequence[JobReport]) -> None:
        with self._connection.transaction():
            self._connection.run(KEEP_REPORTS, self._connection.now(), packed([tuple(report) for report in reports]))

    def held(self) -> list[tuple[int, int]]:
        with self._connection.snapshot():
            return [(id, token) for id, token in self._connection.rows(HELD, self._owner.id)]

    def leases(self, ids: Sequence[int]) -> list[Lease]:
        with self._connection.snapshot():
            return self._policies.leases_from(self._connection.rows(LEASES, packed(ids), self._owner.id))

    def _succeed(self, outcomes: Sequence[Outcome]) -> list[int]:
        accepted, stale = self._settle(self._run_succeed, outcomes, self._connection.now())
        for (queue, tier), n in by_queue_and_tier([outcome[OUTCOME_LEASE] for outcome in accepted]).items():
            self._connection.counts.add(IN_FLIGHT, queue, tier, -n)
            self._connection.counts.add(SUCCEEDED, queue, tier, n)
        self._links.ended(outcome[OUTCOME_LEASE][LEASE_ID] for outcome in accepted)
        return stale

    def _run_succeed(self, outcomes: Sequence[Outcome], now: int) -> int:
        plain: dict[int, dict[int, int | None]] = {}
        with_result: dict[int, dict[int, str]] = {}
        last: int | None = None
        for outcome in outcomes:
            lease, result, took = outcome[OUTCOME_LEASE], outcome[OUTCOME_RESULT], outcome[OUTCOME_TOOK]
            if (token := lease[LEASE_TOKEN]) != last:
                rows, last = plain.setdefault(token, {}), token
            micros = None if took is None else int(took * 1e6)
            if result is None:
                rows[lease[LEASE_ID]] = micros
            else:
                texts = with_result.setdefault(token, {})
                texts[lease[LEASE_ID]] = f"{'' if micros is None else micros}:{result}"
        return sum(
            self._connection.run(statement, now, packed(rows), token)
            for statement, by_token in ((SUCCEED, plain), (SUCCEED_WITH_RESULT, with_result))
            for token, rows in by_token.items()
            if rows
        )

    def _dispose(self, outcomes: Sequence[Outcome]) -> list[int]:
        now = self._connection.now()
        accepted, stale = self._settle(self._run_dispose, outcomes, now)
        self._record(accepted, now)
        return stale

    def _run_dispose(self, outcomes: Sequence[Outcome], now: int) -> int:
        return self._connection.run(DISPOSE, now, packed([_disposed(outcome, now) for outcome in outcomes]))

    def _settle(
        self, settle: Callable[[Sequence[Outcome], int], int], outcomes: Sequence[Outcome], now: int
    ) -> tuple[Sequence[Outcome], list[int]]:
        """Return the accepted outcomes, and the ids of the stale ones. Only if the batch has changed fewer jobs than it should, find
        the stale ones, and repeat it without them."""
        stale: list[int] = []
        if outcomes:
            self._connection.run("savepoint settle")
            if settle(outcomes, now) != len(outcomes):
                self._connection.run("rollback to settle")
                outcomes, stale = self._sort_out(outcomes)
                settle(outcomes, now)
            self._connection.run("release settle")
        return outcomes, stale

    def _sort_out(self, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[int]]:
        """Return the outcomes of jobs still leased, and the ids of those neither leased nor settled before under the same token."""
        batch = packed([(outcome.lease.id, outcome.lease.token, outcome.seen) for outcome in outcomes])
        leased = set(self._connection.json(STILL_LEASED, batch))
        settled = set(self._connection.json(SETTLED_BEFORE, batch))
        accepted: dict[int, Outcome] = {}
        stale: list[int] = []
        for index, outcome in enumerate(outcomes):
            if index in leased:
                accepted.setdefault(outcome.lease.id, outcome)
            elif index not in settled or outcome.seen is not None:
                stale.append(outcome.lease.id)
        return list(accepted.values()), stale

    def _record(self, outcomes: Sequence[Outcome], now: int) -> None:
        """Write the counts, attempts and dead letters that follow from accepted outcomes."""
        kinds = Counter((o.lease.queue, o.lease.tier, o.counted, code_of_state(o)) for o in outcomes)
        for (queue, tier, counted, state), n in kinds.items():
            self._connection.counts.add(IN_FLIGHT, queue, tier, -n)
            self._connection.counts.add(state, queue, 1 if counted else tier, n)
        failures = [
            (o.lease.id, packed(failure_record(o.failure, o.lease, now))) for o in outcomes if o.failure is not None
        ]
        if failures:
            self._connection.run(ADD_ATTEMPTS, packed(failures))
            for id in self._connection.json(WITH_TOO_MANY_ATTEMPTS, packed([id for id, _ in failures])):
                self._connection.run(THIN_OUT_ATTEMPTS, id)
        snoozed = [outcome.lease.id for outcome in outcomes if outcome.kind is Kind.SNOOZED]
        if snoozed:
            self._snoozes.add(snoozed)
        dead_letters = [outcome.lease.id for outcome in outcomes if outcome.dead_letter]
        if dead_letters:
            sinks = self._owner.owed()
            self._connection.run(
                ADD_DEAD_LETTERS, now, packed(dead_letters), sinks_text(sinks), PENDING if sinks else DELIVERED
            )
        self._links.ended(o.lease.id for o in outcomes if code_of_state(o) >= SUCCEEDED)

    def _touch(self, statement: str, time: int, leases: Sequence[Lease]) -> set[int]:
        """Run the statement on these leases; return the ids of those that are stale."""
        if not leases:
            return set()
        batch = packed([(lease.id, lease.token) for lease in leases])
        if self._connection.run(statement, time, batch) == len(leases):
            return set()
        current = set(self._connection.json(STILL_LEASED, batch))
        return {lease.id for index, lease in enumerate(leases) if index not in current}


def _disposed(outcome: Outcome, now: int) -> tuple[Any, ...]:
    """Return the values that DISPOSE reads, in its order."""
    lease, state = outcome.lease, code_of_state(outcome)
    due = finished = None
    if state in (SUCCEEDED, FAILED, CANCELLED):
        finished = now
    elif outcome.counted or state == SCHEDULED:
        due = now + microseconds(outcome.delay)
    change = expired_count_change(outcome)
    return (
        lease.id, lease.token, outcome.took, outcome.result, outcome.seen, state, due, outcome.counted, change, finished
    )  # fmt: skip
