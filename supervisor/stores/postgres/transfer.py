"""The transfer of all jobs from and to a PostgreSQL store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from supervisor.jobs import JobState
from supervisor.stores.codes import BLOCKED, CANCELLED, FAILED, IN_FLIGHT, READY, STATES, SUCCEEDED, WITHDRAWN
from supervisor.stores.postgres.connection import Connection, array
from supervisor.stores.postgres.counts import Counts
from supervisor.stores.postgres.links import Links
from supervisor.stores.postgres.migrations import has_table
from supervisor.stores.postgres.operator import PAUSE
from supervisor.stores.postgres.queries import Queries
from supervisor.stores.postgres.schedules import ScheduleTable
from supervisor.stores.postgres.schema import CLOSE, REOPEN, TRANSFER_OUT, TRANSFERS_IN
from supervisor.stores.schedules import ScheduleRow
from supervisor.stores.transfer import (
    LINKED_STATES,
    TRANSFERRED_STATES,
    TransferRecord,
    TransferredExtras,
    TransferredJob,
    UniqueKey,
    closed_for_another,
    counts_of,
    link_rows,
    refuse_as_target,
    refuse_in_use,
    transferred_job,
)
from supervisor.stores.workflows import CANCELLED_BY

# It returns the identifiers of the server and of the database, by whatever address they are reached. All names are in full: it
# is also run on connections of callers, with search paths of their own.
DATABASE = """
  select system_identifier, (select oid::pg_catalog.int8 from pg_catalog.pg_database
    where datname operator(pg_catalog.=) pg_catalog.current_database())
  from pg_catalog.pg_control_system()"""

LOCK = "lock table {s}.jobs, {s}.supervisors in exclusive mode"
# It takes all locks that are needed to drop the triggers at once, so that the wait for them has one limit.
LOCK_TO_REOPEN = "lock table {s}.jobs, {s}.supervisors in access exclusive mode"
RECORD = "select id, target, place, arrived from {s}.transfer_out"
NOTE_ARRIVAL = "update {s}.transfer_out set arrived = true where id = $1"
# A job that a limit holds back is ready in the other store.
_STATE = f"""case when jobs.state = {BLOCKED} and exists (
      select from {{s}}.held_back where held_back.job_id = jobs.id and held_back.age = jobs.age) then {READY} else jobs.state end"""
IN_FLIGHT_COUNT = f"select count(*) from {{s}}.jobs where state = {IN_FLIGHT}"

_TRANSFERRED = f"state + 0 in ({', '.join(map(str, TRANSFERRED_STATES))})"
_IS_NEEDED = f"""(jobs.state + 0 in ({SUCCEEDED}, {CANCELLED}) and (
    (jobs.state = {CANCELLED} and exists (select from {{s}}.parents where parents.child = jobs.id and link = {CANCELLED_BY}))
    or exists (
      select from {{s}}.parents join {{s}}.jobs as its on its.id = parents.child where parents.parent = jobs.id
        and (its.state in ({BLOCKED}, {FAILED}) or (its.state = {CANCELLED} and exists (
          select from {{s}}.parents as cause where cause.child = its.id and cause.link = {CANCELLED_BY}))))))"""
_LINK_SIZE = 30
"""About the characters of one link in memory."""
# `state + 0` keeps the statement from the indexes by state: the ids are in a range.
SIZES = f"""
  select id, coalesce(octet_length(payload), 0) + coalesce(octet_length(headers), 0) + coalesce(octet_length(result), 0)
    + coalesce((select sum(octet_length(record)) from {{s}}.attempts where job_id = jobs.id), 0)::bigint
    + coalesce((select octet_length(log) from {{s}}.reports where job_id = jobs.id), 0)
    + {_LINK_SIZE} * (select count(*) from {{s}}.parents where parents.child = jobs.id)
  from {{s}}.jobs where id > $1 and id <= $2 and ({_TRANSFERRED} or {_IS_NEEDED}) order by id limit $3"""
EXPORTED = f"""
  select jobs.id, age, jobs.token, handler, queue, coalesce(payload, ''), headers, priority, {_STATE}, tier, retries,
    expired_count, jobs.due_at, created_at, started_at, finished_at, policy, options, result,
    dead_letters.state, dead_letters.due_at, tries, owed, accepted, progress, progress_at, log,
    snoozes.n, snoozes.until, text, extras.key,
    exists(select from {{s}}.key_holders where key_holders.key = extras.key and key_holders.job_id = jobs.id),
    exists(select from {{s}}.key_waiters where key_waiters.key = extras.key and key_waiters.job_id = jobs.id), extras.expires_at,
    exists(select from {{s}}.expiries where expiries.expires_at = extras.expires_at and expiries.job_id = jobs.id),
    case when {_STATE} in ({", ".join(map(str, LINKED_STATES))}) then (
      select json_agg(json_build_array(parent, parents.place, on_failed, link))::text from {{s}}.parents where parents.child = jobs.id) end
  from unnest($1::bigint[]) with ordinality as it(id, place) join {{s}}.jobs on jobs.id = it.id
  left join {{s}}.dead_letters on dead_letters.job_id = jobs.id and dead_letters.state != {WITHDRAWN}
  left join {{s}}.reports on reports.job_id = jobs.id
  left join {{s}}.snoozes on snoozes.job_id = jobs.id
  left join {{s}}.extras on extras.job_id = jobs.id order by place"""
UNIQUE_KEYS = f"""
  select unique_key, job_id, below, until from {{s}}.unique_jobs
  where unique_key > $1 and (until is not null or exists (
    select from {{s}}.jobs where id = unique_jobs.job_id and {_TRANSFERRED}))
  order by unique_key limit $2"""
ATTEMPTS = "select job_id, at, record from {s}.attempts where job_id = any($1::bigint[]) order by job_id, id"
COUNTED = "select state, sum(n)::bigint from {s}.counts group by state"
COUNTED_NEEDED = f"select state, count(*) from {{s}}.jobs where {_IS_NEEDED} group by state"

LAST_ID = "select coalesce(pg_sequence_last_value(pg_get_serial_sequence({jobs}, 'id')::regclass), 0)"
SET_LAST_ID = "select setval(pg_get_serial_sequence({jobs}, 'id'), $1)"
IMPORT_JOBS = """
  copy {s}.jobs(id, age, token, handler, queue, payload, headers, priority, state, tier, retries, expired_count, due_at,
    created_at, started_at, finished_at, policy, options, result) from stdin"""
IMPORT_ATTEMPTS = "copy {s}.attempts(job_id, at, record) from stdin"
IMPORT_REPORTS = "copy {s}.reports(job_id, progress, progress_at, log) from stdin"
IMPORT_SNOOZES = "copy {s}.snoozes(job_id, n, until) from stdin"
IMPORT_DEAD_LETTERS = "copy {s}.dead_letters(job_id, state, due_at, tries, owed, accepted) from stdin"
IMPORT_EXTRAS = "copy {s}.extras(job_id, key, expires_at, text) from stdin"
IMPORT_HOLDERS = "copy {s}.key_holders(key, job_id) from stdin"
IMPORT_WAITERS = "copy {s}.key_waiters(key, job_id) from stdin"
IMPORT_EXPIRIES = "copy {s}.expiries(expires_at, job_id) from stdin"
IMPORT_LINKS = "copy {s}.parents(child, parent, place, on_failed, link) from stdin"
SET_PARENTS_LINKED = (
    "update {s}.jobs set linked = true where linked is not true and id in (select parent from {s}.parents)"
)
IMPORT_UNIQUE_KEYS = "copy {s}.unique_jobs(unique_key, job_id, below, until) from stdin"
# Then `repair` passes these keys on: another program has deleted those that held them.
ADD_LOST_HOLDERS = """
  insert into {s}.key_holders(key, job_id) select key, -min(job_id) from {s}.key_waiters
  where not exists (select from {s}.key_holders where key_holders.key = key_waiters.key) group by key"""
SET_LINKED = """
  update {s}.jobs set linked = extras.key is not null from {s}.extras
  where extras.job_id = jobs.id and (extras.key is not null or extras.text::json ->> 'group' is not null)"""

_BEHIND_RESULT: Final = 19
"""The columns of IMPORT_JOBS are the fields of a TransferredJob before this one."""


class Transfer:
    """Implements `supervisor.stores.transfer.Transferable`. One statement searches among `id_range` ids."""

    def __init__(
        self, connection: Connection, counts: Counts, queries: Queries, links: Links, id_range: int
    ) -> None:  # fmt: skip
        self._connection, self._counts, self._queries, self._id_range = connection, counts, queries, id_range
        self._url, self._links, self._schedules = connection.url, links, ScheduleTable(connection)

    def database(self) -> tuple[int, int]:
        """Return the identifiers of the server and of the database in it."""
        ((server, database),) = self._connection.rows(DATABASE)
        return server, database

    def place(self) -> str:
        server, database = self.database()
        return f"postgresql {server} {database} {self._connection.schema}"

    def transfer_record(self) -> TransferRecord | None:
        with self._connection.snapshot():
            return self._record()

    def _record(self) -> TransferRecord | None:
        if not has_table(self._connection, "transfer_out"):
            return None
        return next((TransferRecord(*row) for row in self._connection.rows(RECORD)), None)

    def close_for_transfer(self, transfer_record: TransferRecord) -> None:
        with self._connection.transaction():
            self._connection.run(LOCK)
            if (closed_for := self._record()) is not None:
                raise closed_for_another(self._url, closed_for)
            supervisors = self._queries.stats()["supervisors"]
            refuse_in_use(self._url, supervisors, self._connection.value(IN_FLIGHT_COUNT))
            self._connection.run(TRANSFER_OUT)
            self._connection.run("insert into {s}.transfer_out values ($1, $2, $3, $4)", *transfer_record)
            for statement in CLOSE:
                self._connection.run(statement)

    def note_arrival(self, transfer_record: TransferRecord) -> None:
        with self._connection.transaction():
            self._connection.run(NOTE_ARRIVAL, transfer_record.id)

    def reopen(self, transfer_record: TransferRecord) -> None:
        with self._connection.transaction():
            self._connection.run(LOCK_TO_REOPEN)
            closed_for = self._record()
            if closed_for is None:
                return
            if closed_for.id != transfer_record.id:
                raise closed_for_another(self._url, closed_for)
            for statement in REOPEN:
                self._connection.run(statement)

    def sizes(self, after: int, limit: int) -> list[tuple[int, int]]:
        """Search ids in ranges: there may be more jobs that are not transferred than one call has time for."""
        last = self._connection.value("select max(id) from {s}.jobs") or 0
        while after < last:
            rows = self._connection.rows(SIZES, after, after + self._id_range, limit)
            if rows:
                return [(id, size) for id, size in rows]
            after += self._id_range
        return []

    def export(self, ids: Sequence[int]) -> list[TransferredJob]:
        batch = array(ids)
        with self._connection.snapshot():
            attempts = {
                id: [(at, record) for _, at, record in its]
                for id, its in groupby(self._connection.rows(ATTEMPTS, batch), itemgetter(0))
            }
            return [transferred_job(row, attempts.get(row[0], ())) for row in self._connection.rows(EXPORTED, batch)]

    def unique_keys(self, after: str, limit: int) -> list[UniqueKey]:
        with self._connection.snapshot():
            return [UniqueKey(*row) for row in self._connection.rows(UNIQUE_KEYS, after, limit)]

    def last_id(self) -> int:
        with self._connection.snapshot():
            return int(self._connection.value(LAST_ID))

    def counted(self) -> Mapping[JobState, int]:
        with self._connection.snapshot():
            return {STATES[state]: n for state, n in self._connection.rows(COUNTED)}

    def counted_needed(self) -> Mapping[JobState, int]:
        with self._connection.snapshot():
            return {STATES[state]: n for state, n in self._connection.rows(COUNTED_NEEDED)}

    def import_jobs(
        self,
        transfer_record: TransferRecord,
        batches: Iterable[Sequence[TransferredJob]],
        last_id: int,
        paused: frozenset[str],
        schedules: Sequence[ScheduleRow] = (),
        unique_keys: Iterable[Sequence[UniqueKey]] = (),
    ) -> None:
        with self._connection.transaction():
            self._connection.run(LOCK)
            has_jobs = bool(self._connection.value("select 1 from {s}.jobs limit 1"))
            refuse_as_target(self._url, self._record(), has_jobs)
            self._connection.run(TRANSFERS_IN)
            self._connection.run("insert into {s}.transfers_in values ($1)", transfer_record.id)
            for batch in batches:
                self._import(batch)
                self._import_extras([(job.id, job.extras) for job in batch if job.extras is not None])
            for keys in unique_keys:
                self._copy(IMPORT_UNIQUE_KEYS, keys)
            self._connection.run(ADD_LOST_HOLDERS)
            self._connection.run(SET_LINKED)
            self._connection.run(SET_PARENTS_LINKED)
            self._links.repair()
            if last_id > self.last_id():
                self._connection.run(SET_LAST_ID, last_id)
            for queue in paused:
                self._connection.run(PAUSE, queue, True)
            self._schedules.write([row.state for row in schedules])

    def _import(self, jobs: Sequence[TransferredJob]) -> None:
        self._copy(IMPORT_JOBS, [job[:_BEHIND_RESULT] for job in jobs])
        self._copy(IMPORT_ATTEMPTS, [(job.id, *attempt) for job in jobs for attempt in job.attempts])
        self._copy(IMPORT_DEAD_LETTERS, [(job.id, *job.dead_letter) for job in jobs if job.dead_letter is not None])
        self._copy(IMPORT_REPORTS, [(job.id, *job.report) for job in jobs if any(job.report)])
        self._copy(IMPORT_SNOOZES, [(job.id, *job.snoozes) for job in jobs if job.snoozes is not None])
        self._copy(IMPORT_LINKS, link_rows(jobs))
        for (state, queue, tier), n in counts_of(jobs).items():
            self._counts.add(state, queue, tier, n)

    def _import_extras(self, extras: Sequence[tuple[int, TransferredExtras]]) -> None:
        self._copy(IMPORT_EXTRAS, [(id, its.key, its.expires_at, its.text) for id, its in extras])
        self._copy(IMPORT_HOLDERS, [(its.key, id) for id, its in extras if its.holds_key])
        self._copy(IMPORT_WAITERS, [(its.key, id) for id, its in extras if its.waits_for_key])
        self._copy(IMPORT_EXPIRIES, [(its.expires_at, id) for id, its in extras if its.may_expire])

    def _copy(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._connection.copy(sql) as copy:
            for row in rows:
                copy.write_row([_storable(value) if isinstance(value, str) else value for value in row])

    def has_received(self, transfer_record: TransferRecord) -> bool:
        """Wait until nobody is importing, since a commit whose answer was lost may still be under way."""
        with self._connection.transaction():
            self._connection.run(LOCK)
            return has_table(self._connection, "transfers_in") and bool(
                self._connection.value("select 1 from {s}.transfers_in where id = $1", transfer_record.id)
            )


def _storable(text: str) -> str:
    """Escape NUL, which PostgreSQL can't hold: another program may have put it into the other store."""
    return text.replace("\x00", "\\x00") if "\x00" in text else text
