"""The changes that the operator's commands make in a PostgreSQL store, pruning among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from supervisor.stores.codes import BLOCKED, CANCELLED, DELIVERED, FAILED, PENDING, READY, STATES, SUCCEEDED, WITHDRAWN
from supervisor.stores.operator_commands import Target
from supervisor.stores.postgres.connection import NOW, Connection, array
from supervisor.stores.postgres.counts import Counts
from supervisor.stores.postgres.enqueue import reserve_ids
from supervisor.stores.postgres.job_limits import forget_times
from supervisor.stores.postgres.links import Links
from supervisor.stores.postgres.queries import Queries
from supervisor.stores.postgres.row_locks import RowLocks
from supervisor.stores.postgres.schema import SINK_LISTS
from supervisor.stores.postgres.settle import LOCK_JOBS
from supervisor.stores.postgres.snoozes import Snoozes
from supervisor.stores.postgres.unique import UniqueKeys
from supervisor.stores.records import Place
from supervisor.stores.sinks import Sinks
from supervisor.stores.workflows import CANCELLED_BY

# It runs after LOCK_JOBS, as a separate statement: a settle that was waited for may have made a dead letter.
TARGETS = """
  select jobs.id, jobs.state, queue, tier, dead_letters.state
  from unnest($1::bigint[]) with ordinality as it(id, place) join {s}.jobs on jobs.id = it.id
  left join {s}.dead_letters on dead_letters.job_id = jobs.id order by place"""
DEAD = f"""
  select job_id from {{s}}.dead_letters where state in ({PENDING}, {DELIVERED}) and job_id > $1 order by job_id limit $2"""
_ENDED = f"""from {{s}}.jobs where state = $1 and state >= {SUCCEEDED} and finished_at <= {NOW} - $2
    and (finished_at, id) > ($3, $4)"""
PAGE_END = f"select finished_at, id {_ENDED} order by finished_at, id limit 1 offset $5"
PAST = f"""
  select id {_ENDED} and (finished_at, id) <= ($5, $6)
    and not exists (select 1 from {{s}}.dead_letters where job_id = jobs.id and dead_letters.state = {PENDING})
    and not exists (
      select from {{s}}.parents join {{s}}.jobs as child on child.id = parents.child
      where parents.parent = jobs.id and (child.state in ({BLOCKED}, {FAILED}) or (child.state = {CANCELLED} and exists (
        select from {{s}}.parents as cause where cause.child = parents.child and cause.link = {CANCELLED_BY}))))
    and not exists (select from {{s}}.key_holders where key_holders.job_id = jobs.id)
  order by finished_at, id limit $7 for update skip locked"""

CANCEL = f"""
  update {{s}}.jobs set state = {CANCELLED}, token = token + 1, finished_at = {NOW}, owner = null, lease_until = null
  where id = any($1::bigint[])"""
DUE_NOW = f"""
  update {{s}}.jobs set state = {READY}, due_at = {NOW}, age = case tier when 1 then {NOW} else age end
  where id = any($1::bigint[])"""
REDRIVE = f"""
  update {{s}}.jobs set state = {READY}, tier = 0, age = it.age, due_at = {NOW}, retries = 0, expired_count = 0,
    started_at = null, finished_at = null, result = null
  from unnest($1::bigint[], $2::bigint[]) as it(id, age) where jobs.id = it.id"""
WITHDRAW = f"update {{s}}.dead_letters set state = {WITHDRAWN} where job_id = any($1::bigint[])"
# It leaves rows that another session has locked, such as those that a supervisor folds at this moment.
FOLD_COUNTS = f"""
  with its as materialized (
    select ctid from {{s}}.counts where state = any(array{[*STATES]}) and queue = any($1::text[]) limit 20000 for update skip locked),
  folded as materialized (
    delete from {{s}}.counts where ctid = any(array(select ctid from its)) returning state, queue, tier, n)
  insert into {{s}}.counts(state, queue, tier, n)
  select state, queue, tier, sum(n) from folded group by state, queue, tier having sum(n) != 0"""
SET_QUEUE = "update {s}.jobs set queue = $1 where id = any($2::bigint[]) and queue <> $1"
REMOVE = "delete from {s}.jobs where id = any($1::bigint[])"
SET_OWED = f"""
  with its as materialized (
    select job_id from {{s}}.dead_letters
    where state = {PENDING} and {SINK_LISTS} = hashtextextended($1 || $2, 0) and owed = $1 and accepted = $2
    order by job_id limit $5 for no key update)
  update {{s}}.dead_letters set owed = $3, state = $4 from its where dead_letters.job_id = its.job_id
  returning its.job_id"""
PAUSE = """
  insert into {s}.queues(queue, paused) values ($1, $2) on conflict(queue) do update set paused = excluded.paused"""


class OperatorChanges:
    """Implements `supervisor.stores.operator_commands.OperatorChanges`."""

    def __init__(self, connection: Connection, counts: Counts, locks: RowLocks, queries: Queries, links: Links) -> None:
        self._connection, self._locks, self.count, self._queries = connection, locks, counts.add, queries
        self._snoozes = Snoozes(connection)
        self._links, self._unique = links, UniqueKeys(connection)

    def find_dead(self, after: int, limit: int) -> Sequence[int]:
        return self._connection.column(DEAD, after, limit)

    def page_end(self, state: int, age: int, after: Place, size: int) -> Place | None:
        found = [] if self._locks.skips_locked else self._connection.rows(PAGE_END, state, age, *after, size - 1)
        return next(((finished_at, id) for finished_at, id in found), None)

    def forget_groups(self, limit: int) -> None:
        if not self._locks.skips_locked:
            self._links.groups.forget_idle(limit)
        forget_times(self._connection, limit)

    def find_past(self, state: int, age: int, after: Place, until: Place, limit: int) -> Sequence[int]:
        """Return no ids while locked rows are skipped: rows of these jobs may be locked, and pruning can wait."""
        skips = self._locks.skips_locked
        return [] if skips else self._connection.column(PAST, state, age, *after, *until, limit)

    def find_targets(self, ids: Sequence[int]) -> list[Target]:
        wanted = array(dict.fromkeys(ids))
        self._connection.later(LOCK_JOBS, wanted)
        return [Target(*row) for row in self._connection.rows(TARGETS, wanted)]

    def pending_lists(self) -> list[tuple[str, str]]:
        return [(owed, accepted) for owed, accepted, _ in self._queries.pending(1)]

    def running_sinks(self) -> Sinks:
        return frozenset(sink for supervisor in self._queries.supervisors() for sink in supervisor["sinks"])

    def make_cancelled(self, ids: Sequence[int]) -> None:
        self._links.groups.free_turns(ids)
        self._connection.later(CANCEL, array(ids))
        self._links.ended(ids)

    def make_due(self, ids: Sequence[int]) -> None:
        self._connection.later(DUE_NOW, array(ids))
        self._links.due(ids)

    def retake_unique_keys(self, ids: Sequence[int]) -> Mapping[int, str]:
        return self._unique.retake(ids)

    def prune_unique_keys(self, limit: int) -> None:
        self._unique.prune(limit)

    def make_fresh(self, ids: Sequence[int]) -> None:
        self._connection.later(REDRIVE, array(ids), array(reserve_ids(self._connection, len(ids))))
        self._connection.later(WITHDRAW, array(ids))
        self._snoozes.forget(ids)
        self._links.run_again(ids)

    def set_queue(self, ids: Sequence[int], before: Collection[str], queue: str) -> None:
        """The trigger `queue_changed` counts the jobs, by two rows for each."""
        self._connection.later(SET_QUEUE, queue, array(ids))
        self._connection.later(FOLD_COUNTS, [*before, queue])

    def remove(self, ids: Sequence[int]) -> None:
        self._links.ended(ids, deleted=True)
        self._connection.later(REMOVE, array(ids))

    def set_owed(self, before: tuple[str, str], owed: str, state: int, limit: int) -> int:
        return len(self._connection.column(SET_OWED, *before, owed, state, limit))

    def set_paused(self, queue: str, paused: bool) -> None:
        self._connection.run(PAUSE, queue, paused)
