"""The turns of groups in SQLite: see `supervisor.stores.groups`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from supervisor.stores.codes import READY
from supervisor.stores.groups import NO_GROUP, UNIT, Shares, spacing, start_of
from supervisor.stores.sqlite.connection import Connection, Select, packed

# A queue has a row in `turns` for each priority at which jobs take turns. A group has a row while its position counts.
GROUP_TABLES = (
    "create table turns(queue text, priority int, round int not null, primary key(queue, priority)) without rowid",
    """create table job_groups(
      queue text, priority int, name text, position int not null, primary key(queue, priority, name)) without rowid""",
    "create index job_groups_by_position on job_groups(queue, priority, position)",
    "create table group_shares(queue text, name text, shares real not null, primary key(queue, name)) without rowid",
)


def _name(row: str) -> str:
    return f"coalesce((select json_extract(text, '$.group') from extras where job_id = {row}.id), '{NO_GROUP}')"


def _width(queue: str, name: str) -> str:
    shares = f"(select shares from group_shares where group_shares.queue = {queue} and group_shares.name = {name})"
    return f"cast({UNIT} / coalesce({shares}, 1) + 0.999999 as integer)"


_NAME = _name("new")
_WIDTH = _width("new.queue", _NAME)
_SAME = "queue = new.queue and priority = new.priority"
_IS_FRESH = f"exists (select 1 from jobs where id = new.id and state = {READY} and tier = 0)"
# For triggers: give the new job, which another program has inserted or moved, a turn if others take turns in its queue.
TAKE_TURN = f"""insert into job_groups(queue, priority, name, position)
        select queue, priority, {_NAME}, {_WIDTH} + max(
          {UNIT} * max(round, coalesce((
            select age from jobs where state = {READY} and {_SAME} and tier = 0 and age >= round and id != new.id
            order by age limit 1), 0)),
          coalesce((select position from job_groups where {_SAME} and name = {_NAME}), 0))
        from turns where {_SAME} and {_IS_FRESH}
        on conflict(queue, priority, name) do update set position = excluded.position;
      update jobs set age = (select (position - {_WIDTH}) / {UNIT} from job_groups where {_SAME} and name = {_NAME})
        where id = new.id and {_IS_FRESH} and exists (select 1 from turns where {_SAME});"""
# For triggers: free the turn of the old job if that waited for it, and is deleted, or moved to another queue.
FREE_TURN = f"""update job_groups set position = position - {_width("old.queue", "job_groups.name")}
        where old.state = {READY} and old.tier = 0 and queue = old.queue and priority = old.priority and name = {_name("old")};"""
_MOVED = "old.queue is not new.queue"
FREE_MOVED_TURN = f"{FREE_TURN.removesuffix(';')} and {_MOVED};"
TAKE_MOVED_TURN = TAKE_TURN.replace(_IS_FRESH, f"{_MOVED} and {_IS_FRESH}")
FREE_TURNS = f"""
  update job_groups set position = position - it.n * {_width("it.queue", "it.name")}
  from (
    select queue, priority, {_name("jobs")} as name, count(*) as n
    from json_each(?) as ids cross join jobs on jobs.id = ids.value and jobs.state = {READY} and jobs.tier = 0
    group by queue, priority, 3) as it
  where job_groups.queue = it.queue and job_groups.priority = it.priority and job_groups.name = it.name"""

IN_USE = "select exists(select 1 from turns)"
# The jobs among ?1 that take a turn now, in their order: those that have a group, or are in a queue where others have one.
TAKERS = Select(
    "id, queue, priority, name",
    f"""from (
      select *, max(name) over (partition by queue, priority) != '{NO_GROUP}' as shared
      from (
        select jobs.id, due_at, queue, priority, coalesce(json_extract(extras.text, '$.group'), '{NO_GROUP}') as name
        from json_each(?1) as it cross join jobs on jobs.id = it.value and jobs.state = {READY} and jobs.tier = 0
          left join extras on extras.job_id = jobs.id)) as it
    where shared or exists (select 1 from turns where turns.queue = it.queue and turns.priority = it.priority)
    order by due_at, id""",
)
ROUND = "select round from turns where queue = ? and priority = ?"
_WAITING = f"""
  from jobs where state = {READY} and queue = ?1 and tier = 0 and priority = ?2 and age >= ?3
    and id not in (select value from json_each(?4))"""
FIRST_WAITING = f"select age {_WAITING} order by age limit 1"
LAST_WAITING = f"select age {_WAITING} order by age desc limit 1"
FIRST_NEW_ID = "select seq + 1 - json_array_length(?) from sqlite_sequence where name = 'jobs'"
POSITION = """
  select json_array(
    (select position from job_groups where queue = ?1 and priority = ?2 and name = ?3),
    (select shares from group_shares where queue = ?1 and name = ?3))"""
SET_AGES = "update jobs set age = it.value from json_each(?) as it where jobs.id = cast(it.key as integer)"
SET_ROUND = "insert or replace into turns(queue, priority, round) values (?, ?, ?)"
SET_POSITION = "insert or replace into job_groups(queue, priority, name, position) values (?, ?, ?, ?)"

_OF_TURNS = (
    "from turns cross join job_groups on job_groups.queue = turns.queue and job_groups.priority = turns.priority"
)
_NONE_WAITS = f"""not exists (
      select 1 from jobs where state = {READY} and jobs.queue = turns.queue and tier = 0 and jobs.priority = turns.priority)"""
# A group that is not ahead of the round that was reached would start from there anyway, and so would all groups if no job waits.
FORGET_GROUPS = f"""
  delete from job_groups where (queue, priority, name) in (
    select * from (select job_groups.queue, job_groups.priority, name {_OF_TURNS} where position <= round * {UNIT} limit ?1)
    union all
    select * from (select job_groups.queue, job_groups.priority, name {_OF_TURNS} where {_NONE_WAITS} limit ?1))"""
FORGET_TURNS = f"""
  delete from turns where {_NONE_WAITS} and not exists (
    select 1 from job_groups where job_groups.queue = turns.queue and job_groups.priority = turns.priority)"""

FORGET_SHARES = "delete from group_shares where ?1 is null or queue in (select value from json_each(?1))"
SET_SHARE = "insert or replace into group_shares(queue, name, shares) values (?, ?, ?)"


@dataclass(slots=True)
class _Turns:
    """Of the jobs of one queue and priority that become ready in one call."""

    reached: int
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The next start and the spacing, by group."""


class Groups:
    """Gives turns to jobs. All calls are made inside the transaction that makes the jobs ready."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def in_use(self) -> bool:
        return bool(self._connection.value(IN_USE))

    def take_turns(self, ids: Sequence[int]) -> None:
        """Give those of these jobs a turn that are ready and fresh, and share a queue by groups."""
        batch = packed(ids)
        turns: dict[tuple[str, int], _Turns] = {}
        ages: dict[int, int] = {}
        for id, queue, priority, name in self._connection.rows(TAKERS, batch):
            its = turns.get((queue, priority))
            if its is None:
                its = turns[queue, priority] = _Turns(self._reach(queue, priority, batch))
            start, width = its.positions.get(name) or self._position(queue, priority, name, its.reached)
            its.positions[name] = start + width, width
            ages[id] = start // UNIT
        for (queue, priority), its in turns.items():
            positions = [(queue, priority, name, start) for name, (start, _) in its.positions.items()]
            self._connection.run_many(SET_POSITION, positions)
        if ages:
            self._connection.run(SET_AGES, packed(ages))

    def free_turns(self, ids: Sequence[int]) -> None:
        """Free the turns of those of these jobs that wait for them, and are about to be cancelled."""
        if self.in_use():
            self._connection.run(FREE_TURNS, packed(ids))

    def _reach(self, queue: str, priority: int, batch: str) -> int:
        """Return the round that was reached, and keep it. The jobs of the batch have no turn yet."""
        before = self._connection.value(ROUND, queue, priority)
        first = self._connection.value(FIRST_WAITING, queue, priority, before or 0, batch)
        reached = max(before or 0, self._connection.value(FIRST_NEW_ID, batch) if first is None else first)
        if before is None:  # jobs that wait since before have no group, and keep their places
            last = self._connection.value(LAST_WAITING, queue, priority, 0, batch)
            if last is not None:
                self._connection.run(SET_POSITION, queue, priority, NO_GROUP, (last + 1) * UNIT)
        if reached != before:
            self._connection.run(SET_ROUND, queue, priority, reached)
        return int(reached)

    def _position(self, queue: str, priority: int, name: str, reached: int) -> tuple[int, int]:
        position, shares = self._connection.json(POSITION, queue, priority, name)
        return start_of(position, reached), spacing(shares or 1)

    def forget_idle(self, limit: int) -> None:
        """Remove what no longer counts, of `limit` groups at most."""
        if self.in_use():
            self._connection.run(FORGET_GROUPS, limit)
            self._connection.run(FORGET_TURNS)

    def set_shares(self, shares: Shares, queues: frozenset[str] | None) -> None:
        """Set the shares of all groups of these queues, of all queues if it is None."""
        with self._connection.transaction():
            rows = [(queue, name, n) for queue, of in shares.items() for name, n in of.items()]
            self._connection.run(FORGET_SHARES, None if queues is None else packed(list(queues)))
            self._connection.run_many(SET_SHARE, rows)
