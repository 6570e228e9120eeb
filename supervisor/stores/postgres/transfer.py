"""Jobs from and to a PostgreSQL store as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from psycopg import sql as quoting

from supervisor.jobs import JobState
from supervisor.stores.codes import IN_FLIGHT, STATES, WITHDRAWN
from supervisor.stores.postgres.connection import array
from supervisor.stores.postgres.functions import BODY
from supervisor.stores.postgres.operator import OperatorChanges
from supervisor.stores.transfer import (
    TRANSFERRED_STATES,
    TransferRecord,
    TransferredJob,
    closed_for_another,
    closed_message,
    counts_of,
    refuse_as_target,
    refuse_in_use,
    transferred_job,
)

SIZES = f"""select id, coalesce(octet_length(payload), 0) + coalesce(octet_length(headers), 0) + coalesce(octet_length(result), 0)
    + coalesce((select sum(octet_length(record)) from {{s}}.attempts where job_id = jobs.id), 0)::bigint
  from {{s}}.jobs where id > $1 and id <= $2 and state + 0 in ({", ".join(map(str, TRANSFERRED_STATES))}) order by id limit $3"""
PACKED = f"""select jobs.id, age, jobs.token, handler, queue, coalesce(payload, ''), headers, priority, jobs.state, tier,
    retries, expired_count, jobs.due_at, created_at, started_at, finished_at, policy, options, result,
    dead_letters.state, dead_letters.due_at, tries, accepted
  from unnest($1::bigint[]) with ordinality as it(id, place) join {{s}}.jobs on jobs.id = it.id
  left join {{s}}.dead_letters on dead_letters.job_id = jobs.id and dead_letters.state != {WITHDRAWN} order by place"""
ATTEMPTS = """select job_id, at, record from {s}.attempts where job_id = any($1::bigint[]) order by job_id, id"""
COUNTED = "select state, sum(n)::bigint from {s}.counts group by state"
LAST_ID = """select last_value - case when is_called then 0 else 1 end from {sequence}"""

STRETCH = 100_000

LOCK = "lock table {s}.jobs, {s}.supervisors in exclusive mode"
LOCK_ALONE = LOCK.replace("exclusive", "access exclusive")
"""At once all that is needed to drop what stands there, so that the wait for it has one limit."""
CLOSE = (
    "create table {s}.shut(id text not null, target text not null, place text not null, arrived boolean not null)",
    f"""create function {{s}}.refuse_shut() returns trigger language plpgsql as
      {BODY} begin raise exception using message = {{told}}; end {BODY}""",
    """create trigger shut before insert or update on {s}.jobs for each statement execute function {s}.refuse_shut()""",
    """create trigger shut before insert on {s}.supervisors for each statement execute function {s}.refuse_shut()""",
)
REOPEN = ("drop function {s}.refuse_shut cascade", "drop table {s}.shut")

JOBS = """copy {s}.jobs(id, age, token, handler, queue, payload, headers, priority, state, tier, retries, expired_count, due_at,
  created_at, started_at, finished_at, policy, options, result) from stdin"""
ATTEMPTS_IN = "copy {s}.attempts(job_id, at, record) from stdin"
DEAD_LETTERS_IN = "copy {s}.dead_letters(job_id, state, due_at, tries, accepted) from stdin"


class Transfer(OperatorChanges):
    def database(self) -> tuple[int, int]:
        """Of the server and in it, whatever it is called and however it is reached."""
        ((server, database),) = self.rows(DATABASE)
        return server, database

    def place(self) -> str:
        server, database = self.database()
        return f"postgresql {server} {database} {self.schema}"

    def transfer_record(self) -> TransferRecord | None:
        with self.snapshot():
            return self._transfer_record()

    def _transfer_record(self) -> TransferRecord | None:
        if not self._has_table("shut"):
            return None
        return next(
            (TransferRecord(*row) for row in self.rows("select id, target, place, arrived from {s}.shut")), None
        )

    def close_for_transfer(self, transfer_record: TransferRecord) -> None:
        with self.transaction():
            self.run(LOCK)
            if (closed_for := self._transfer_record()) is not None:
                raise closed_for_another(self.url, closed_for)
            alive = [it for it in self.stats()["supervisors"] if it["state"] != "gone"]
            refuse_in_use(self.url, alive, self.value(f"select count(*) from {{s}}.jobs where state = {IN_FLIGHT}"))
            told = quoting.Literal(closed_message(transfer_record.target)).as_string(None)
            for statement in CLOSE:
                self.run(statement.replace("{told}", told))
            self.run("insert into {s}.shut values ($1, $2, $3, $4)", *transfer_record)

    def note_arrival(self, transfer_record: TransferRecord) -> None:
        with self.transaction():
            self.run("update {s}.shut set arrived = true where id = $1", transfer_record.id)

    def reopen(self, transfer_record: TransferRecord) -> None:
        with self.transaction():
            self.run(LOCK_ALONE)
            closed_for = self._transfer_record()
            if closed_for is None:
                return
            if closed_for.id != transfer_record.id:
                raise closed_for_another(self.url, closed_for)
            for statement in REOPEN:
                self.run(statement)

    def sizes(self, after: int, limit: int) -> list[tuple[int, int]]:
        """Ids are looked through in stretches: of jobs that are not to move there may be more than one call has time for."""
        last = self.value("select max(id) from {s}.jobs") or 0
        while after < last:
            rows = self.rows(SIZES, after, after + STRETCH, limit)
            if rows:
                return [(id, size) for id, size in rows]
            after += STRETCH
        return []

    def export(self, ids: Sequence[int]) -> list[TransferredJob]:
        with self.snapshot():
            attempts = {
                id: [(at, record) for _, at, record in its]
                for id, its in groupby(self.rows(ATTEMPTS, array(ids)), itemgetter(0))
            }
            rows = self.rows(PACKED, array(ids))
        return [transferred_job(row, attempts.get(row[0], ())) for row in rows]

    def last_id(self) -> int:
        with self.snapshot():
            sequence = self.value("select pg_get_serial_sequence($1, 'id')", f"{self.quoted}.jobs")
            return int(self.value(LAST_ID.replace("{sequence}", sequence)))

    def counted(self) -> Mapping[JobState, int]:
        with self.snapshot():
            return {STATES[state]: n for state, n in self.rows(COUNTED)}

    def import_jobs(
        self,
        transfer_record: TransferRecord,
        batches: Iterable[Sequence[TransferredJob]],
        last_id: int,
        paused: frozenset[str],
    ) -> None:
        with self.transaction():
            self.run(LOCK)
            refuse_as_target(self.url, self._transfer_record(), bool(self.value("select 1 from {s}.jobs limit 1")))
            self.run("create table if not exists {s}.received(id text primary key)")
            self.run("insert into {s}.received values ($1)", transfer_record.id)
            for batch in batches:
                self._receive(batch)
            if last_id > self.last_id():
                self.run("select setval(pg_get_serial_sequence($1, 'id'), $2)", f"{self.quoted}.jobs", last_id)
            for queue in paused:
                self.set_paused(queue, True)

    def _receive(self, jobs: Sequence[TransferredJob]) -> None:
        self._copy_in(JOBS, [job[:19] for job in jobs])
        self._copy_in(ATTEMPTS_IN, [(job.id, *attempt) for job in jobs for attempt in job.attempts])
        self._copy_in(DEAD_LETTERS_IN, [(job.id, *job.dead_letter) for job in jobs if job.dead_letter is not None])
        for (state, queue, tier), n in counts_of(jobs).items():
            self.count(state, queue, tier, n)

    def _copy_in(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self.on_connection() as connection, connection.cursor().copy(sql.replace("{s}", self.quoted)) as copy:
            for row in rows:
                copy.write_row([_storable(value) if isinstance(value, str) else value for value in row])

    def has_received(self, transfer_record: TransferRecord) -> bool:
        """Once nobody is receiving: a commit whose answer was lost may still be under way."""
        with self.transaction():
            self.run(LOCK)
            return self._has_table("received") and bool(
                self.value("select 1 from {s}.received where id = $1", transfer_record.id)
            )

    def _has_table(self, name: str) -> bool:
        return self.value("select to_regclass($1)", f"{self.quoted}.{name}") is not None


def _storable(text: str) -> str:
    """NUL is in no text of ours; somebody else put it where it stands."""
    return text.replace("\x00", "\\x00") if "\x00" in text else text


DATABASE = """select system_identifier, (select oid::pg_catalog.int8 from pg_catalog.pg_database
    where datname operator(pg_catalog.=) pg_catalog.current_database())
  from pg_catalog.pg_control_system()"""
