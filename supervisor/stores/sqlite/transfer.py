"""The transfer of all jobs from and to a SQLite store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from supervisor.jobs import JobState
from supervisor.stores.codes import BLOCKED, CANCELLED, FAILED, IN_FLIGHT, READY, STATES, SUCCEEDED, WITHDRAWN
from supervisor.stores.records import readable_attempt
from supervisor.stores.schedules import ScheduleRow
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.links import Links
from supervisor.stores.sqlite.long_texts import put_long_texts
from supervisor.stores.sqlite.operator import PAUSE
from supervisor.stores.sqlite.policies import Policies
from supervisor.stores.sqlite.queries import ATTEMPTS, Queries
from supervisor.stores.sqlite.queue import next_age
from supervisor.stores.sqlite.schedules import ScheduleTable
from supervisor.stores.sqlite.schema import (
    CLOSED_TRIGGERS,
    REPORT_LENGTH,
    TRANSFER_OUT,
    TRANSFERS_IN,
    closed_trigger,
)
from supervisor.stores.sqlite.texts import HEADERS, PAYLOAD, TEXT_LENGTH
from supervisor.stores.transfer import (
    LINKED_STATES,
    TRANSFERRED_STATES,
    TransferRecord,
    TransferredExtras,
    TransferredJob,
    UniqueKey,
    closed_for_another,
    closed_message,
    counts_of,
    link_rows,
    refuse_as_target,
    refuse_in_use,
    transferred_job,
)
from supervisor.stores.workflows import CANCELLED_BY

RECORD = Select("id, target, place, arrived", "from transfer_out")
NOTE_ARRIVAL = "update transfer_out set arrived = true where id = ?"
IN_FLIGHT_COUNT = f"select count(*) from jobs where state = {IN_FLIGHT}"

# A job that a limit holds back is ready in the other store.
_STATE = f"""iif(jobs.state = {BLOCKED} and exists (
        select 1 from held_back as held where held.job_id = jobs.id and held.age = jobs.age), {READY}, jobs.state)"""
_TRANSFERRED = f"state in ({', '.join(map(str, TRANSFERRED_STATES))})"
_IS_NEEDED = f"""(state in ({SUCCEEDED}, {CANCELLED}) and (
        (state = {CANCELLED} and exists (select 1 from parents where parents.child = jobs.id and link = {CANCELLED_BY}))
        or exists (
          select 1 from parents cross join jobs as its on its.id = parents.child where parents.parent = jobs.id
            and (its.state in ({BLOCKED}, {FAILED}) or (its.state = {CANCELLED} and exists (
              select 1 from parents as cause where cause.child = its.id and cause.link = {CANCELLED_BY}))))))"""
_LINK_SIZE = 30
"""About the characters of one link in memory."""
SIZES = Select(
    "id, size",
    f"""from (
      select id, {TEXT_LENGTH} + {REPORT_LENGTH} + coalesce(length(result), 0)
        + coalesce((select sum(length(record)) from attempts where job_id = jobs.id), 0)
        + {_LINK_SIZE} * (select count(*) from parents where child = jobs.id) as size
      from jobs where id > ? and ({_TRANSFERRED} or {_IS_NEEDED}) order by id limit ?)""",
)
EXPORTED = Select(
    f"""jobs.id, age, jobs.token, handler, queue, {PAYLOAD}, {HEADERS}, priority,
      {_STATE}, tier, retries, expired_count, jobs.due_at, created_at, started_at, finished_at, policies.policy, options,
      cast(result as text), dead_letters.state, dead_letters.due_at, tries, owed, accepted,
      cast(progress as text), progress_at, cast(log as text), snoozes.n, snoozes.until, cast(extras.text as text), extras.key,
      exists(select 1 from key_holders where key_holders.key = extras.key and key_holders.job_id = jobs.id),
      exists(select 1 from key_waiters where key_waiters.key = extras.key and key_waiters.job_id = jobs.id), extras.expires_at,
      exists(select 1 from expiries where expiries.expires_at = extras.expires_at and expiries.job_id = jobs.id),
      iif({_STATE} in ({", ".join(map(str, LINKED_STATES))}), (
        select json_group_array(json_array(parent, place, on_failed, link)) || '' from parents where parents.child = jobs.id), null)""",
    f"""from json_each(?) as it cross join jobs on jobs.id = it.value
      left join policies on policies.id = jobs.policy
      left join dead_letters on dead_letters.job_id = jobs.id and dead_letters.state != {WITHDRAWN}
      left join reports on reports.job_id = jobs.id left join snoozes on snoozes.job_id = jobs.id
      left join extras on extras.job_id = jobs.id""",
)
UNIQUE_KEYS = Select(
    "unique_key, job_id, below, until",
    f"""from (
      select unique_key, job_id, below, until from unique_jobs
      where unique_key > ? and (until is not null or exists(select 1 from jobs where id = unique_jobs.job_id and {_TRANSFERRED}))
      order by unique_key limit ?)""",
)
COUNTED = Select("state, n", "from (select state, sum(n) as n from counts group by state)")
COUNTED_NEEDED = Select("state, n", f"from (select state, count(*) as n from jobs where {_IS_NEEDED} group by state)")

IMPORT_JOBS = """
  insert into jobs(id, age, token, handler, queue, payload, headers, priority, state, tier, retries, expired_count,
    due_at, created_at, started_at, finished_at, policy, options, result)
  values (:id, :age, :token, :handler, :queue, :payload, :headers, :priority, :state, :tier, :retries, :expired_count,
    :due_at, :created_at, :started_at, :finished_at, :policy, :options, :result)"""
IMPORT_ATTEMPTS = "insert into attempts(job_id, record) values (?, ?)"
IMPORT_REPORTS = "insert into reports(job_id, progress, progress_at, log) values (?, ?, ?, ?)"
IMPORT_SNOOZES = "insert into snoozes(job_id, n, until) values (?, ?, ?)"
IMPORT_DEAD_LETTERS = "insert into dead_letters(job_id, state, due_at, tries, owed, accepted) values (?, ?, ?, ?, ?, ?)"
IMPORT_EXTRAS = "insert into extras(job_id, key, expires_at, text) values (?, ?, ?, ?)"
IMPORT_HOLDERS = "insert into key_holders(key, job_id) values (?, ?)"
IMPORT_WAITERS = "insert into key_waiters(key, job_id) values (?, ?)"
IMPORT_EXPIRIES = "insert into expiries(expires_at, job_id) values (?, ?)"
IMPORT_LINKS = "insert into parents(child, parent, place, on_failed, link) values (?, ?, ?, ?, ?)"
IMPORT_UNIQUE_KEYS = "insert into unique_jobs(unique_key, job_id, below, until) values (?, ?, ?, ?)"
RAISE_LAST_ID = "update sqlite_sequence set seq = max(seq, ?) where name = 'jobs'"


class Transfer:
    """Implements `supervisor.stores.transfer.Transferable`."""

    def __init__(self, url: str, connection: Connection, policies: Policies, queries: Queries, links: Links) -> None:
        self._url, self._connection, self._policies, self._queries = url, connection, policies, queries
        self._links, self._schedules = links, ScheduleTable(connection)

    def place(self) -> str:
        return f"sqlite {self._connection.path.resolve()}"

    def transfer_record(self) -> TransferRecord | None:
        with self._connection.snapshot():
            rows = self._connection.rows(RECORD) if self._has_table("transfer_out") else []
        return next((TransferRecord(*row) for row in rows), None)

    def close_for_transfer(self, transfer_record: TransferRecord) -> None:
        with self._connection.transaction():
            if (closed_for := self.transfer_record()) is not None:
                raise closed_for_another(self._url, closed_for)
            supervisors = self._queries.stats()["supervisors"]
            refuse_in_use(self._url, supervisors, self._connection.value(IN_FLIGHT_COUNT))
            self._connection.run(TRANSFER_OUT)
            self._connection.run("insert into transfer_out values (?, ?, ?, ?)", *transfer_record)
            for name in CLOSED_TRIGGERS:
                self._connection.run(closed_trigger(name, closed_message(transfer_record.target)))

    def note_arrival(self, transfer_record: TransferRecord) -> None:
        with self._connection.transaction():
            self._connection.run(NOTE_ARRIVAL, transfer_record.id)

    def reopen(self, transfer_record: TransferRecord) -> None:
        with self._connection.transaction():
            closed_for = self.transfer_record()
            if closed_for is None:
                return
            if closed_for.id != transfer_record.id:
                raise closed_for_another(self._url, closed_for)
            for name in CLOSED_TRIGGERS:
                self._connection.run(f"drop trigger {name}")
            self._connection.run("drop table transfer_out")

    def sizes(self, after: int, limit: int) -> list[tuple[int, int]]:
        with self._connection.snapshot():
            return [(id, size) for id, size in self._connection.rows(SIZES, after, limit)]

    def export(self, ids: Sequence[int]) -> list[TransferredJob]:
        batch = packed(ids)
        with self._connection.snapshot():
            attempts: dict[int, list[tuple[int, str]]] = {}
            for job_id, text in self._connection.rows(ATTEMPTS, batch):
                record = readable_attempt(text)
                attempts.setdefault(job_id, []).append((record["at"], packed(record)))
            jobs = [transferred_job(row) for row in self._connection.rows(EXPORTED, batch)]
        return [job._replace(attempts=attempts.get(job.id, ())) for job in jobs]

    def unique_keys(self, after: str, limit: int) -> list[UniqueKey]:
        with self._connection.snapshot():
            return [UniqueKey(*row) for row in self._connection.rows(UNIQUE_KEYS, after, limit)]

    def last_id(self) -> int:
        return next_age(self._connection) - 1

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
            has_jobs = bool(self._connection.value("select 1 from jobs limit 1"))
            refuse_as_target(self._url, self.transfer_record(), has_jobs)
            self._connection.run(TRANSFERS_IN)
            self._connection.run("insert into transfers_in values (?)", transfer_record.id)
            for batch in batches:
                self._import(batch)
                self._import_extras([(job.id, job.extras) for job in batch if job.extras is not None])
            for keys in unique_keys:
                self._connection.run_many(IMPORT_UNIQUE_KEYS, keys)
            self._links.repair()
            self._connection.run(RAISE_LAST_ID, last_id)
            self._connection.run_many(PAUSE, [(queue, True) for queue in paused])
            self._schedules.write([row.state for row in schedules])

    def _import(self, jobs: Sequence[TransferredJob]) -> None:
        policies = {text: None if text is None else self._policies.id_of(text) for text in {job.policy for job in jobs}}
        texts = put_long_texts(self._connection, [(job.id, job.payload, job.headers) for job in jobs])
        rows = [
            {**job._asdict(), "policy": policies[job.policy], "payload": payload, "headers": headers}
            for job, (payload, headers) in zip(jobs, texts, strict=True)
        ]
        self._connection.run_many(IMPORT_JOBS, rows)
        self._connection.run_many(
            IMPORT_ATTEMPTS,
            [(job.id, packed(readable_attempt(record, at))) for job in jobs for at, record in job.attempts],
        )
        self._connection.run_many(
            IMPORT_DEAD_LETTERS, [(job.id, *job.dead_letter) for job in jobs if job.dead_letter is not None]
        )
        self._connection.run_many(IMPORT_REPORTS, [(job.id, *job.report) for job in jobs if any(job.report)])
        self._connection.run_many(IMPORT_SNOOZES, [(job.id, *job.snoozes) for job in jobs if job.snoozes is not None])
        self._connection.run_many(IMPORT_LINKS, link_rows(jobs))
        for (state, queue, tier), n in counts_of(jobs).items():
            self._connection.counts.add(state, queue, tier, n)

    def _import_extras(self, extras: Sequence[tuple[int, TransferredExtras]]) -> None:
        run = self._connection.run_many
        run(IMPORT_EXTRAS, [(id, its.key, its.expires_at, its.text) for id, its in extras])
        run(IMPORT_HOLDERS, [(its.key, id) for id, its in extras if its.holds_key])
        run(IMPORT_WAITERS, [(its.key, id) for id, its in extras if its.waits_for_key])
        run(IMPORT_EXPIRIES, [(its.expires_at, id) for id, its in extras if its.may_expire])

    def has_received(self, transfer_record: TransferRecord) -> bool:
        with self._connection.transaction():
            return self._has_table("transfers_in") and bool(
                self._connection.value("select 1 from transfers_in where id = ?", transfer_record.id)
            )

    def _has_table(self, name: str) -> bool:
        return bool(self._connection.value("select 1 from sqlite_master where type = 'table' and name = ?", name))
