"""Queries to a PostgreSQL store, for people, programs and --drain. They change no jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from supervisor.events import MAX_COUNTED
from supervisor.jobs import JobState
from supervisor.stores.codes import (
    BLOCKED,
    DEAD_LETTERS,
    IN_FLIGHT,
    LEFT,
    PENDING,
    READY,
    SCHEDULED,
    STATES,
    SUCCEEDED,
    WITHDRAWN,
)
from supervisor.stores.counts import queue_rows, running_jobs
from supervisor.stores.job_reports import add_progress, shown_progress
from supervisor.stores.limits import LAST_TIME
from supervisor.stores.pages import PAGE_CHARACTERS, in_pages
from supervisor.stores.postgres.claim import PAUSED
from supervisor.stores.postgres.connection import NOW, Connection, array
from supervisor.stores.postgres.counts import Counts
from supervisor.stores.postgres.keys import KEY_HOLDER
from supervisor.stores.postgres.owner_lock import is_gone
from supervisor.stores.postgres.ownership import Ownership
from supervisor.stores.postgres.policies import stored_policy
from supervisor.stores.postgres.schema import SINK_LISTS
from supervisor.stores.postgres.search import LAST_ATTEMPTS, Search
from supervisor.stores.postgres.stuck import stuck
from supervisor.stores.records import microseconds, own_max_retries, readable_attempt
from supervisor.stores.search import (
    MAX_FAILURES,
    UNLIMITED,
    USUAL,
    FoundJobs,
    IdRange,
    JobFilter,
    SearchLimits,
    failure_dict,
    find,
)
from supervisor.stores.shown import Shown, job_dict, key_holder
from supervisor.stores.sinks import count_by_work, missing_sinks, sink_rows, sinks_of
from supervisor.stores.stuck import has_blocked
from supervisor.stores.supervisors import SupervisorRow, read_about, read_list, supervisor_dict
from supervisor.stores.workflows import MAX_SHOWN, NO_RELATIVES, relatives
from supervisor.text.units import iso


def _shown_sql(payload: str, result: str, headers: str, log: str) -> str:
    return f"""
      select jobs.id, handler, {payload}, queue, priority, jobs.state, retries, policy, options, jobs.due_at,
        created_at, started_at, finished_at, {result}, {headers}, expired_count,
        (select supervisors.owner from {{s}}.supervisors where supervisors.id = jobs.owner), lease_until,
        progress, progress_at, {log}, extras.text, expires_at, {KEY_HOLDER}, dead_letters.state, owed, accepted,
        snoozes.n, snoozes.until
      from unnest($1::bigint[]) with ordinality as it(id, place) join {{s}}.jobs on jobs.id = it.id
      left join {{s}}.extras on extras.job_id = jobs.id
      left join {{s}}.dead_letters on dead_letters.job_id = jobs.id
      left join {{s}}.reports on reports.job_id = jobs.id
      left join {{s}}.snoozes on snoozes.job_id = jobs.id order by place"""


SHOWN = _shown_sql("coalesce(payload, '')", "result", "headers", "log")
BRIEF = _shown_sql("'null'", "null", "null", "null")
PROGRESS = "select job_id, progress, progress_at from {s}.reports where job_id = any($1::bigint[])"
ATTEMPTS = "select job_id, at, record from {s}.attempts where job_id = any($1::bigint[]) order by id"
ENDED = f"""
  select it.id from unnest($1::bigint[]) with ordinality as it(id, place)
  where coalesce((select state from {{s}}.jobs where jobs.id = it.id), {SUCCEEDED}) >= {SUCCEEDED} order by place"""
# The number of the first of these jobs whose texts and attempts have at most $2 bytes together, at least one.
FIT = """
  select count(*) from (
    select place, sum(coalesce(octet_length(payload), 0) + coalesce(octet_length(headers), 0) + coalesce(octet_length(result), 0)
      + coalesce((select sum(octet_length(record)) from {s}.attempts where job_id = jobs.id), 0)
      + coalesce((select octet_length(log) from {s}.reports where job_id = jobs.id), 0)) over (order by place) as total
    from unnest($1::bigint[]) with ordinality as it(id, place) left join {s}.jobs on jobs.id = it.id) as its
  where total <= $2 or place = 1"""

COUNTED = "select queue, state, tier, sum(n)::bigint from {s}.counts group by queue, state, tier having sum(n) > 0"
UNFINISHED = f"select queue, state, sum(n)::bigint from {{s}}.counts where state < {SUCCEEDED} group by queue, state"
# These two read in the order of an index, so that they read no more than they count.
DUE_BY = f"""
  select count(*) from (
    select from {{s}}.jobs where state = {SCHEDULED} and due_at <= $1 and queue = any($2::text[])
      and ($4::text[] is null or handler = any($4))
    order by due_at, id limit $3) as it"""
# Steps from one pair of lists to the next in the index: many dead letters share few of them.
PENDING_DEAD_LETTERS = f"""
  with recursive steps(lists, owed, accepted) as (
    (select {SINK_LISTS}, owed, accepted from {{s}}.dead_letters where state = {PENDING} order by {SINK_LISTS} limit 1)
    union all
    select next.* from steps cross join lateral (
      select {SINK_LISTS}, owed, accepted from {{s}}.dead_letters where state = {PENDING} and {SINK_LISTS} > steps.lists
      order by {SINK_LISTS} limit 1) as next)
  select owed, accepted, (
    select count(*) from (
      select from {{s}}.dead_letters where state = {PENDING} and {SINK_LISTS} = steps.lists limit $1) as its)
  from steps"""
RUNNING_BY_QUEUE = f"""
  select queue, count(*) from {{s}}.jobs where id = any($1::bigint[]) and state = {IN_FLIGHT} group by queue"""
SUPERVISORS = f"""
  select id, owner, host, pid, state, seen_at, workers, sinks, about, owner_lock, {NOW} > unseen_after, in_flight, lease_until
  from {{s}}.supervisors cross join lateral (
    select count(*) as in_flight, max(lease_until) as lease_until
    from {{s}}.jobs where jobs.state = {IN_FLIGHT} and jobs.owner = supervisors.id) as leases
  order by id"""
CLOCK = f"select {NOW}"
HAVE_ANY = """
  select it.id from unnest($1::bigint[]) as it(id)
  where exists (select from {s}.parents where child = it.id) or exists (select from {s}.parents where parent = it.id)"""
PARENTS = """
  select parents.parent, jobs.handler, jobs.state, link from {s}.parents left join {s}.jobs on jobs.id = parents.parent
  where child = $1 order by place limit $2"""
CHILDREN = """
  select parents.child, jobs.handler, jobs.state, link from {s}.parents join {s}.jobs on jobs.id = parents.child
  where parent = $1 order by child limit $2"""
COUNTED_BY_STATE = """
  select state, count(*) from unnest($1::bigint[]) as it(id) left join {s}.jobs on jobs.id = it.id group by state"""


class Queries:
    def __init__(self, connection: Connection, counts: Counts, owner: Ownership) -> None:
        self._connection, self._counts, self._owner = connection, counts, owner
        self._search = Search(connection)

    def clock(self) -> float:
        with self._connection.snapshot():
            return float(self._connection.value(CLOCK)) / 1_000_000

    def get(self, id: int) -> dict[str, Any] | None:
        with self._connection.snapshot():
            found = self.jobs_shown([id])
        return found[0] if found else None

    def list_jobs(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        handler: str | None = None,
        dead_letter: str | None = None,
        limit: int = 100,
        brief: bool = False,
    ) -> Iterator[dict[str, Any]]:
        where = JobFilter(state, queue, handler, dead_letter=dead_letter)
        with self._connection.snapshot():
            found = self._search.walk(where, IdRange(), None, limit, UNLIMITED)
        return in_pages([id for _, id in found.places], lambda page: self.get_many(page, brief))

    def find_jobs(
        self, where: JobFilter, *, before: str | None = None, limit: int = 100, limits: SearchLimits = USUAL
    ) -> FoundJobs:
        with self._connection.snapshot():
            found = find(self._search, where, before, limit, limits)
        return found._replace(jobs=in_pages(found.ids, lambda page: self.get_many(page, brief=True)))

    def failures(self, limit: int, among: int = MAX_FAILURES) -> list[dict[str, Any]]:
        with self._connection.snapshot():
            groups = self._search.failures(limit, among)
            found = self._connection.rows(LAST_ATTEMPTS, array([group.id for group in groups]))
            attempts = {id: readable_attempt(record, at) for id, at, record in found}
        return [failure_dict(group, attempts.get(group.id, {})) for group in groups]

    def ended(self, ids: Sequence[int]) -> list[int]:
        with self._connection.snapshot():
            return self._connection.column(ENDED, array(ids))

    def counts_by_state(self, ids: Sequence[int]) -> dict[str | None, int]:
        with self._connection.snapshot():
            rows = self._connection.rows(COUNTED_BY_STATE, array(ids))
        return {None if state is None else STATES[state].value: n for state, n in rows}

    def get_many(self, ids: list[int], brief: bool = False) -> tuple[int, list[dict[str, Any]]]:
        with self._connection.snapshot():
            if not brief:
                ids = ids[: self._connection.value(FIT, array(ids), PAGE_CHARACTERS)]
            return len(ids), self.jobs_shown(ids, brief)

    def jobs_shown(self, ids: Sequence[int], brief: bool = False) -> list[dict[str, Any]]:
        """Return the jobs that exist, in the order of `ids`."""
        batch = array(ids)
        errors: dict[int, list[Mapping[str, Any]]] = {}
        for job_id, at, record in self._connection.rows(LAST_ATTEMPTS if brief else ATTEMPTS, batch):
            errors.setdefault(job_id, []).append(readable_attempt(record, at))
        jobs = [job_dict(_shown(row, errors)) for row in self._connection.rows(BRIEF if brief else SHOWN, batch)]
        return jobs if brief else self._with_relatives(jobs)

    def _with_relatives(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        batch, rows = array([job["id"] for job in jobs]), self._connection.rows
        found = {
            id: relatives(rows(PARENTS, id, MAX_SHOWN), rows(CHILDREN, id, MAX_SHOWN))
            for id in self._connection.column(HAVE_ANY, batch)
        }
        return [job | found.get(job["id"], NO_RELATIVES) for job in jobs]

    def remaining(
        self,
        served: frozenset[str] | None,
        latest: float | None,
        most: int = MAX_COUNTED,
        handlers: Collection[str] | None = None,
    ) -> dict[str, int]:
        with self._connection.snapshot():
            self._counts.write()
            paused = frozenset(self._connection.column(PAUSED))
            counted = [
                (queue, state, n)
                for queue, state, n in self._connection.rows(UNFINISHED)
                if n and queue not in paused and (served is None or queue in served)
            ]
            left = {
                of: sum(n for _, state, n in counted if state == of) for of in (BLOCKED, SCHEDULED, READY, IN_FLIGHT)
            }
            if (latest is not None or handlers is not None) and left[SCHEDULED]:
                waiting = list({queue for queue, state, _ in counted if state == SCHEDULED})
                due_by = LAST_TIME if latest is None else microseconds(latest)
                known = None if handlers is None else list(handlers)
                left[SCHEDULED] = self._connection.value(DUE_BY, due_by, waiting, most, known)
            dead_letters = count_by_work(self.pending(most), self._owner.sinks, most)
        counts = {STATES[state].value: n for state, n in left.items()} | dead_letters
        return {name: n for name, n in counts.items() if n}

    def pending(self, most: int) -> list[tuple[str, str, int]]:
        """(owed, accepted, n) of pending dead letters; it counts to `most` only."""
        return [(owed, accepted, n) for owed, accepted, n in self._connection.rows(PENDING_DEAD_LETTERS, most)]

    def stats(self) -> dict[str, Any]:
        with self._connection.snapshot():
            self._counts.write()
            supervisors = self.supervisors()
            running = array(running_jobs(supervisors))
            processing: dict[str, int] = dict(self._connection.rows(RUNNING_BY_QUEUE, running))
            progress = {id: shown_progress(text, at) for id, text, at in self._connection.rows(PROGRESS, running)}
            add_progress(supervisors, progress)
            paused = frozenset(self._connection.column(PAUSED))
            counted = self._connection.rows(COUNTED)
            queues = queue_rows(counted, paused, processing)
            waits = stuck(self._connection) if has_blocked(counted) else []
            sinks = sink_rows(self.pending(MAX_COUNTED), supervisors)
            at = iso(self._connection.value(CLOCK))
        return {"at": at, "queues": queues, "supervisors": supervisors, "sinks": sinks, "stuck": waits}

    def sinks(self) -> list[dict[str, Any]]:
        with self._connection.snapshot():
            return sink_rows(self.pending(MAX_COUNTED), self.supervisors())

    def supervisors(self) -> list[dict[str, Any]]:
        """Return the supervisors without those that hold no lease and have left, are provably gone, or were not seen for long."""
        shown = []
        for row in self._connection.rows(SUPERVISORS):
            id, owner, host, pid, state, seen_at, workers, sinks, about, lock, overdue, *leases = row
            it = SupervisorRow(owner, host, pid, state, seen_at, *leases)
            gone = state == LEFT or (id != self._owner.id and is_gone(lock))
            if it.in_flight or not (gone or overdue):
                shown.append(supervisor_dict(it, gone, read_list(workers), sinks_of(sinks), read_about(about)))
        return shown


def _shown(row: Sequence[Any], errors: Mapping[int, Sequence[Mapping[str, Any]]]) -> Shown:
    id, handler, payload, queue, priority, state, retries, policy, options = row[:9]
    *rest, expired, owner, until, progress, at, log, extras, expires_at, holder, dead_letter, owed, accepted, n, end = (
        row[9:]
    )
    most = own_max_retries(options, None if policy is None else stored_policy(policy, None))
    known = (id, handler, payload, queue, priority, STATES[state].value, retries, most, *rest)
    missing = missing_sinks(owed, accepted) if dead_letter == PENDING else ()
    dead_letter = DEAD_LETTERS[dead_letter or WITHDRAWN]
    reports = (progress, at, log, extras, expires_at, key_holder(holder), n, end, options)
    return Shown._make((*known, errors.get(id, ()), dead_letter, missing, expired, owner, until, *reports))
