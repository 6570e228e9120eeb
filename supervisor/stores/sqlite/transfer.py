"""Jobs from and to a SQLite store as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import orjson

from supervisor.errors import RowRefused
from supervisor.jobs import JobState
from supervisor.stores.codes import IN_FLIGHT, STATES, WITHDRAWN
from supervisor.stores.sqlite.connection import packed
from supervisor.stores.sqlite.operator import OperatorChanges
from supervisor.stores.sqlite.policies import BY_ID
from supervisor.stores.sqlite.queries import ATTEMPTS
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

_TRANSFERRED = f"state in ({', '.join(map(str, TRANSFERRED_STATES))})"
SIZES = f"""(select id, coalesce(length(payload), 0) + coalesce(length(headers), 0) + coalesce(length(result), 0)
    + coalesce((select sum(length(record)) from attempts where job_id = jobs.id), 0) as weight
  from jobs where id > ? and {_TRANSFERRED} order by id limit ?)"""
PACKED = f"""{BY_ID} left join policies on policies.id = jobs.policy
  left join dead_letters on dead_letters.job_id = jobs.id and dead_letters.state != {WITHDRAWN}"""
_AS_JOB = """jobs.id, age, jobs.token, handler, queue, coalesce(cast(payload as text), ''), cast(headers as text), priority,
  jobs.state, tier, retries, expired_count, jobs.due_at, created_at, started_at, finished_at, policies.policy, options,
  cast(result as text)"""
_AS_DEAD_LETTER = "dead_letters.state, dead_letters.due_at, tries, accepted"
_COLUMNS = """id, age, token, handler, queue, payload, headers, priority, state, tier, retries, expired_count, due_at, created_at,
  started_at, finished_at, policy, options, result"""

GUARDS = {"enqueues": "insert on jobs", "updates": "update on jobs", "joins": "insert on supervisors"}


class Transfer(OperatorChanges):
    url: str

    def place(self) -> str:
        return f"sqlite {self.path.resolve()}"

    def transfer_record(self) -> TransferRecord | None:
        with self.snapshot():
            return self._transfer_record()

    def _transfer_record(self) -> TransferRecord | None:
        if not self._has_table("shut"):
            return None
        return next((TransferRecord(*row) for row in self.rows("id, target, place, arrived", "shut")), None)

    def close_for_transfer(self, transfer_record: TransferRecord) -> None:
        with self.transaction():
            if (closed_for := self._transfer_record()) is not None:
                raise closed_for_another(self.url, closed_for)
            alive = [it for it in self.stats()["supervisors"] if it["state"] != "gone"]
            refuse_in_use(self.url, alive, self.value(f"select count(*) from jobs where state = {IN_FLIGHT}"))
            self.run(
                "create table shut(id text not null, target text not null, place text not null, arrived int not null)"
            )
            self.run("insert into shut values (?, ?, ?, ?)", *transfer_record)
            told = closed_message(transfer_record.target).replace("'", "''")
            for name, act in GUARDS.items():
                self.run(f"create trigger shut_{name} before {act} begin select raise(abort, '{told}'); end")

    def note_arrival(self, transfer_record: TransferRecord) -> None:
        with self.transaction():
            self.run("update shut set arrived = true where id = ?", transfer_record.id)

    def reopen(self, transfer_record: TransferRecord) -> None:
        with self.transaction():
            closed_for = self._transfer_record()
            if closed_for is None:
                return
            if closed_for.id != transfer_record.id:
                raise closed_for_another(self.url, closed_for)
            for name in GUARDS:
                self.run(f"drop trigger shut_{name}")
            self.run("drop table shut")

    def sizes(self, after: int, limit: int) -> list[tuple[int, int]]:
        with self.snapshot():
            return [(id, size) for id, size in self.rows("id, weight", SIZES, after, limit)]

    def export(self, ids: Sequence[int]) -> list[TransferredJob]:
        batch = packed(ids)
        with self.snapshot():
            attempts = {
                id: [(record["at"], packed(record)) for _, record in its]
                for id, its in groupby(
                    self.rows("job_id, json(record)", f"{ATTEMPTS} order by it.key, attempts.id", batch), itemgetter(0)
                )
            }
            rows = self.rows(f"{_AS_JOB}, {_AS_DEAD_LETTER}", PACKED, batch)
        return [transferred_job(row, attempts.get(row[0], ())) for row in rows]

    def last_id(self) -> int:
        return self.next_age() - 1

    def counted(self) -> Mapping[JobState, int]:
        with self.snapshot():
            rows = self.rows("state, n", "(select state, sum(n) as n from counts group by state)")
        return {STATES[state]: n for state, n in rows}

    def import_jobs(
        self,
        transfer_record: TransferRecord,
        batches: Iterable[Sequence[TransferredJob]],
        last_id: int,
        paused: frozenset[str],
    ) -> None:
        with self.transaction():
            refuse_as_target(self.url, self._transfer_record(), bool(self.value("select 1 from jobs limit 1")))
            self.run("create table if not exists received(id text primary key) without rowid")
            self.run("insert into received values (?)", transfer_record.id)
            for batch in batches:
                self._receive(batch)
            self.run("update sqlite_sequence set seq = max(seq, ?) where name = 'jobs'", last_id)
            self._put_all("insert or replace into queues(queue, paused) values (?, 1)", [(queue,) for queue in paused])

    def _receive(self, jobs: Sequence[TransferredJob]) -> None:
        policies = {text: self._policy_id(text) for text in {job.policy for job in jobs}}
        self._put_all(
            f"insert into jobs({_COLUMNS}) values ({', '.join('?' * 19)})",
            [(*job[:16], policies[job.policy], *job[17:19]) for job in jobs],
        )
        self._put_all(
            "insert into attempts(job_id, record) values (?, ?)",
            [(job.id, packed({**orjson.loads(record), "at": at})) for job in jobs for at, record in job.attempts],
        )
        self._put_all(
            "insert into dead_letters(job_id, state, due_at, tries, accepted) values (?, ?, ?, ?, ?)",
            [(job.id, *job.dead_letter) for job in jobs if job.dead_letter is not None],
        )
        for (state, queue, tier), n in counts_of(jobs).items():
            self.count(state, queue, tier, n)

    def _policy_id(self, text: str | None) -> int | None:
        if text is None:
            return None
        self.run("insert into policies(policy) values (?) on conflict do nothing", text)
        return int(self.value("select id from policies where policy = ?", text))

    def _put_all(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        try:
            self._connection.executemany(sql, rows)
        except (UnicodeError, OverflowError) as error:
            raise RowRefused(f"a row can't be stored: {error}") from None

    def has_received(self, transfer_record: TransferRecord) -> bool:
        with self.transaction():
            return self._has_table("received") and bool(
                self.value("select 1 from received where id = ?", transfer_record.id)
            )

    def _has_table(self, name: str) -> bool:
        return bool(self.value("select 1 from sqlite_master where type = 'table' and name = ?", name))
