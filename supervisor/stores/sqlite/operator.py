"""The operator's verbs on a SQLite store, and pruning."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.stores.codes import CANCELLED, DELIVERED, PENDING, READY, SUCCEEDED, WITHDRAWN
from supervisor.stores.operator_commands import Target
from supervisor.stores.sqlite.connection import packed
from supervisor.stores.sqlite.dead_letters import DeadLetterQueue
from supervisor.stores.sqlite.policies import BY_ID

_TARGET = f"{BY_ID} left join dead_letters on dead_letters.job_id = jobs.id"
_DEAD = f"""(select job_id from dead_letters where state in ({PENDING}, {DELIVERED}) and job_id > ? order by job_id limit ?)"""

CANCEL = f"""update jobs set state = {CANCELLED}, token = token + 1, finished_at = ?1, owner = null, lease_until = null
  where id in (select value from json_each(?2))"""
DUE_NOW = f"""update jobs set state = {READY}, due_at = ?1, age = iif(tier, ?1, age)
  where id in (select value from json_each(?2))"""
REDRIVE = f"""update jobs set state = {READY}, tier = 0, age = ?1 + it.key, due_at = ?2, retries = 0, expired_count = 0,
    started_at = null, finished_at = null, result = null
  from json_each(?3) as it where jobs.id = it.value"""
WITHDRAW = f"update dead_letters set state = {WITHDRAWN} where job_id in (select value from json_each(?))"

EXPIRED = f"""(select id from jobs where state = ? and state >= {SUCCEEDED} and finished_at <= ?
  and not exists (select 1 from dead_letters where job_id = jobs.id and dead_letters.state = {PENDING})
  order by finished_at limit ?)"""


class OperatorChanges(DeadLetterQueue):
    def set_paused(self, queue: str, paused: bool) -> None:
        self.run("insert or replace into queues(queue, paused) values (?, ?)", queue, paused)

    def find_past(self, state: int, age: int, limit: int) -> Sequence[int]:
        return self.column("id", EXPIRED, state, self.now() - age, limit)

    def find_dead(self, after: int, limit: int) -> Sequence[int]:
        return self.column("job_id", _DEAD, after, limit)

    def find_targets(self, ids: Sequence[int]) -> list[Target]:
        return [
            Target(*row)
            for row in self.rows("jobs.id, jobs.state, queue, tier, dead_letters.state", _TARGET, packed(ids))
        ]

    def make_cancelled(self, ids: Sequence[int]) -> None:
        self.run(CANCEL, self.now(), packed(ids))

    def make_due(self, ids: Sequence[int]) -> None:
        self.run(DUE_NOW, self.now(), packed(ids))

    def make_fresh(self, ids: Sequence[int]) -> None:
        age = self.next_age()
        self.run("update sqlite_sequence set seq = ? where name = 'jobs'", age + len(ids) - 1)
        self.run(REDRIVE, age, self.now(), packed(ids))
        self.run(WITHDRAW, packed(ids))

    def remove(self, ids: Sequence[int]) -> None:
        for table, key in (("jobs", "id"), ("attempts", "job_id"), ("dead_letters", "job_id")):
            self.run(f"delete from {table} where {key} in (select value from json_each(?))", packed(ids))
