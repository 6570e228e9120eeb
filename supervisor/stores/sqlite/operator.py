"""The operator's changes of jobs in a SQLite store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from supervisor.stores.codes import BLOCKED, CANCELLED, DELIVERED, FAILED, PENDING, READY, SUCCEEDED, WITHDRAWN
from supervisor.stores.operator_commands import BEHIND_ALL, Target
from supervisor.stores.records import Place
from supervisor.stores.sinks import Sinks
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.job_limits import LEAVE, forget_times
from supervisor.stores.sqlite.links import Links
from supervisor.stores.sqlite.queries import Queries
from supervisor.stores.sqlite.queue import next_age
from supervisor.stores.sqlite.schema import SINK_LISTS
from supervisor.stores.sqlite.snoozes import Snoozes
from supervisor.stores.sqlite.unique import UniqueKeys
from supervisor.stores.workflows import CANCELLED_BY

TARGETS = Select(
    "jobs.id, jobs.state, queue, tier, dead_letters.state",
    """from json_each(?) as it cross join jobs on jobs.id = it.value
      left join dead_letters on dead_letters.job_id = jobs.id""",
)
DEAD = f"""
  select json_group_array(job_id) from (
    select job_id from dead_letters where state in ({PENDING}, {DELIVERED}) and job_id > ? order by job_id limit ?)"""
_ENDED = f"""
  from jobs where state = ? and state >= {SUCCEEDED} and (finished_at, id) > (?, ?) and (finished_at, id) <= (?, ?)"""
PAGE_END = f"""
  select json_group_array(json_array(finished_at, id)) from (
    select finished_at, id {_ENDED} order by finished_at, id limit 1 offset ?)"""
PAST = f"""
  select json_group_array(id) from (
    select id {_ENDED} and not exists (select 1 from dead_letters where job_id = jobs.id and dead_letters.state = {PENDING})
      and not exists (
        select 1 from parents cross join jobs as child on child.id = parents.child
        where parents.parent = jobs.id and (child.state in ({BLOCKED}, {FAILED}) or (child.state = {CANCELLED} and exists (
          select 1 from parents as cause where cause.child = parents.child and cause.link = {CANCELLED_BY}))))
      and not exists (select 1 from key_holders where key_holders.job_id = jobs.id)
    order by finished_at, id limit ?)"""

CANCEL = f"""
  update jobs set state = {CANCELLED}, token = token + 1, finished_at = ?1, owner = null, lease_until = null
  where id in (select value from json_each(?2))"""
DUE_NOW = f"""
  update jobs set state = {READY}, due_at = ?1, age = iif(tier, ?1, age)
  where id in (select value from json_each(?2))"""
TAKE_AGES = "update sqlite_sequence set seq = ? where name = 'jobs'"
REDRIVE = f"""
  update jobs set state = {READY}, tier = 0, age = ?1 + it.key, due_at = ?2, retries = 0, expired_count = 0,
    started_at = null, finished_at = null, result = null
  from json_each(?3) as it where jobs.id = it.value"""
WITHDRAW = f"update dead_letters set state = {WITHDRAWN} where job_id in (select value from json_each(?))"
SET_QUEUE = "update jobs set queue = ?1 where id in (select value from json_each(?2)) and queue != ?1"
REMOVE = "delete from jobs where id in (select value from json_each(?))"
SET_OWED = f"""
  update dead_letters set owed = ?3, state = ?4 where job_id in (
    select job_id from dead_letters
    where state = {PENDING} and {SINK_LISTS} = ?1 || ?2 and +owed = ?1 and +accepted = ?2 limit ?5)"""
PAUSE = "insert or replace into queues(queue, paused) values (?, ?)"


class OperatorChanges:
    """Implements `supervisor.stores.operator_commands.OperatorChanges`."""

    def __init__(self, connection: Connection, queries: Queries, links: Links) -> None:
        self._connection, self.count, self._queries = connection, connection.counts.add, queries
        self._snoozes = Snoozes(connection)
        self._links, self._unique = links, UniqueKeys(connection)

    def find_dead(self, after: int, limit: int) -> Sequence[int]:
        with self._connection.snapshot():
            ids: list[int] = self._connection.json(DEAD, after, limit)
        return ids

    def page_end(self, state: int, age: int, after: Place, size: int) -> Place | None:
        found = self._connection.json(PAGE_END, state, *after, self._connection.now() - age, BEHIND_ALL[1], size - 1)
        return next(((finished_at, id) for finished_at, id in found), None)

    def forget_groups(self, limit: int) -> None:
        self._links.groups.forget_idle(limit)
        forget_times(self._connection, limit)

    def find_past(self, state: int, age: int, after: Place, until: Place, limit: int) -> Sequence[int]:
        until = min(until, (self._connection.now() - age, BEHIND_ALL[1]))
        ids: list[int] = self._connection.json(PAST, state, *after, *until, limit)
        return ids

    def find_targets(self, ids: Sequence[int]) -> list[Target]:
        return [Target(*row) for row in self._connection.rows(TARGETS, packed(ids))]

    def pending_lists(self) -> list[tuple[str, str]]:
        return [(owed, accepted) for owed, accepted, _ in self._queries.pending(1)]

    def running_sinks(self) -> Sinks:
        return frozenset(sink for supervisor in self._queries.supervisors() for sink in supervisor["sinks"])

    def make_cancelled(self, ids: Sequence[int]) -> None:
        self._links.groups.free_turns(ids)
        self._connection.run(CANCEL, self._connection.now(), packed(ids))
        self._connection.run(LEAVE, packed(ids))
        self._links.ended(ids)

    def make_due(self, ids: Sequence[int]) -> None:
        self._connection.run(DUE_NOW, self._connection.now(), packed(ids))
        self._links.due(ids)

    def retake_unique_keys(self, ids: Sequence[int]) -> Mapping[int, str]:
        return self._unique.retake(ids, self._connection.now())

    def prune_unique_keys(self, limit: int) -> None:
        self._unique.prune(self._connection.now(), limit)

    def make_fresh(self, ids: Sequence[int]) -> None:
        age = next_age(self._connection)
        self._connection.run(TAKE_AGES, age + len(ids) - 1)
        self._connection.run(REDRIVE, age, self._connection.now(), packed(ids))
        self._connection.run(WITHDRAW, packed(ids))
        self._snoozes.forget(ids)
        self._links.run_again(ids)

    def set_queue(self, ids: Sequence[int], before: Collection[str], queue: str) -> None:
        """The trigger `queue_changed` counts the jobs, in counts that must have been written."""
        self._connection.counts.write()
        self._connection.run(SET_QUEUE, queue, packed(ids))

    def remove(self, ids: Sequence[int]) -> None:
        """Remove the jobs, and counts that are 0 then: names of queues may be used once only."""
        self._links.ended(ids, deleted=True)
        self._connection.counts.write()
        self._connection.run(REMOVE, packed(ids))
        self._connection.run("delete from counts where n = 0")

    def set_owed(self, before: tuple[str, str], owed: str, state: int, limit: int) -> int:
        return self._connection.run(SET_OWED, *before, owed, state, limit)

    def set_paused(self, queue: str, paused: bool) -> None:
        self._connection.run(PAUSE, queue, paused)
