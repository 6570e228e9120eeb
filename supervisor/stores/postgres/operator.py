"""The operator's verbs on a PostgreSQL store, and pruning."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.stores.codes import CANCELLED, DELIVERED, PENDING, READY, SUCCEEDED, WITHDRAWN
from supervisor.stores.operator_commands import Target
from supervisor.stores.postgres.claim import NOW
from supervisor.stores.postgres.connection import array
from supervisor.stores.postgres.dead_letters import DeadLetterQueue
from supervisor.stores.postgres.settle import LOCK

# First the locks (LOCK), then, in a statement of its own, what is behind them: a settle that was waited for may have left a letter.
TARGETS = """select jobs.id, jobs.state, queue, tier, dead_letters.state
  from unnest($1::bigint[]) with ordinality as it(id, place) join {s}.jobs on jobs.id = it.id
  left join {s}.dead_letters on dead_letters.job_id = jobs.id order by place"""
DEAD = f"""select job_id from {{s}}.dead_letters where state in ({PENDING}, {DELIVERED}) and job_id > $1
  order by job_id limit $2"""

CANCEL = f"""update {{s}}.jobs set state = {CANCELLED}, token = token + 1, finished_at = {NOW}, owner = null,
    lease_until = null
  where id = any($1::bigint[])"""
DUE_NOW = f"""update {{s}}.jobs set state = {READY}, due_at = {NOW}, age = case tier when 1 then {NOW} else age end
  where id = any($1::bigint[])"""
REDRIVE = f"""update {{s}}.jobs set state = {READY}, tier = 0, age = it.age, due_at = {NOW}, retries = 0, expired_count = 0,
    started_at = null, finished_at = null, result = null
  from unnest($1::bigint[], $2::bigint[]) as it(id, age) where jobs.id = it.id"""
WITHDRAW = f"update {{s}}.dead_letters set state = {WITHDRAWN} where job_id = any($1::bigint[])"
PAUSE = """insert into {s}.queues(queue, paused) values ($1, $2)
  on conflict(queue) do update set paused = excluded.paused"""

EXPIRED = f"""select id from {{s}}.jobs where state = $1 and state >= {SUCCEEDED} and finished_at <= {NOW} - $2
    and not exists (select 1 from {{s}}.dead_letters where job_id = jobs.id and dead_letters.state = {PENDING})
  order by finished_at limit $3 for update skip locked"""


class OperatorChanges(DeadLetterQueue):
    def set_paused(self, queue: str, paused: bool) -> None:
        self.run(PAUSE, queue, paused)

    def find_past(self, state: int, age: int, limit: int) -> Sequence[int]:
        if self.skips_locked:  # somebody may have locked what hangs on the jobs; there is time
            return []
        return self.column(EXPIRED, state, age, limit)

    def find_dead(self, after: int, limit: int) -> Sequence[int]:
        return self.column(DEAD, after, limit)

    def find_targets(self, ids: Sequence[int]) -> list[Target]:
        wanted = array(dict.fromkeys(ids))
        self.later(LOCK, wanted)
        return [Target(*row) for row in self.rows(TARGETS, wanted)]

    def make_cancelled(self, ids: Sequence[int]) -> None:
        self.later(CANCEL, array(ids))

    def make_due(self, ids: Sequence[int]) -> None:
        self.later(DUE_NOW, array(ids))

    def make_fresh(self, ids: Sequence[int]) -> None:
        self.later(REDRIVE, array(ids), array(self.reserved(len(ids))))
        self.later(WITHDRAW, array(ids))

    def remove(self, ids: Sequence[int]) -> None:
        for table, key in (("jobs", "id"), ("attempts", "job_id"), ("dead_letters", "job_id")):
            self.later(f"delete from {{s}}.{table} where {key} = any($1::bigint[])", array(ids))
