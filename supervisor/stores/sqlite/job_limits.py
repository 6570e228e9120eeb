"""Claims under limits in SQLite. Whoever has the write lock has locked all limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import orjson

from supervisor.jobs import LEASE_ID, LEASE_TOKEN, Lease
from supervisor.stores.codes import BLOCKED, IN_FLIGHT, READY
from supervisor.stores.job_limits import (
    GROUP,
    HANDLER,
    Limit,
    Line,
    Times,
    Use,
    group_of,
    name_of_group,
    name_of_handler,
    name_of_queue,
    times_of,
)
from supervisor.stores.limited_claims import Candidate
from supervisor.stores.records import Resolve
from supervisor.stores.sqlite.connection import Connection, Select, packed

MAX_PARTS = 100
"""One call removes so many parts of a line that were changed by others."""
ClaimReady = Callable[[Sequence[int], float, Resolve], list[Lease]]

# `times` is a JSON list of [when, how many claims]. The row of a group has the time `until` which they count, and is removed after it.
# A lease counts only while its job is in flight under its token. A job that is held back is blocked, and has a row until it is claimed,
# or is changed by somebody else: then its state or its age is another. The line of a group is open from `open_at` on; without a time it
# is closed until a lease of the group has ended.
LIMITS_UNTIL = "create index limits_until on limits(until) where until is not null"
HELD_BACK_TABLES = (
    """create table held_back(job_id integer primary key, name text not null, queue text not null, tier int not null,
      priority int not null, age int not null)""",
    "create index held_back_lines on held_back(name, queue, tier, priority desc, age)",
    "create table group_lines(queue text, tier int, name text, open_at int, primary key(queue, tier, name)) without rowid",
    "create index open_lines on group_lines(queue, tier, open_at)",
)
LIMIT_TABLES = (
    "create table limits(name text primary key, times text not null, until int) without rowid",
    LIMITS_UNTIL,
    "create table limited_leases(name text, job_id int, token int not null, primary key(name, job_id)) without rowid",
    *HELD_BACK_TABLES,
)
_OF_GROUPS = f"name >= '{GROUP}' and name < '{GROUP.rstrip()}!'"
_OPEN = "on conflict(queue, tier, name) do update set open_at = excluded.open_at"
HELD_BACK_GONE = "delete from held_back where job_id = old.id"
HELD_BACK_MOVED = f"""update held_back set queue = new.queue where job_id = new.id;
      insert into group_lines(queue, tier, name, open_at)
        select queue, tier, name, 0 from held_back where job_id = new.id and {_OF_GROUPS} {_OPEN}"""

_IS_LIVE = f"jobs.id = job_id and jobs.token = limited_leases.token and jobs.state = {IN_FLIGHT}"
USES = Select(
    "it.value, (select times from limits where name = it.value), live",
    f"""from (
      select value, (select count(*) from limited_leases cross join jobs on {_IS_LIVE} where name = it.value) as live
      from json_each(?) as it) as it""",
)
FORGET_ENDED = f"delete from limited_leases where name = ? and not exists (select 1 from jobs where {_IS_LIVE})"
BEGIN = f"""
  insert or replace into limited_leases(name, job_id, token)
  select ?1, id, token from jobs where state = {IN_FLIGHT} and ?1 in ('{name_of_queue("")}' || queue, '{name_of_handler("")}' || handler)"""
ADD_LEASES = """
  insert or replace into limited_leases(name, job_id, token)
  select ?1, json_extract(value, '$[0]'), json_extract(value, '$[1]') from json_each(?2)"""
KEEP_TIMES = "insert or replace into limits(name, times, until) values (?, ?, ?)"
FORGET_TIMES = """
  delete from limits where name in (
    select name from limits where until is not null and until <= ? order by until limit ?)"""

# A comparison of all three columns at once would walk to the end of the line.
_NEXT = "select name, queue, tier from held_back where"
NEXT_LINE = Select(
    "name, queue, tier",
    f"""from (
      select * from ({_NEXT} name = ?1 and queue = ?2 and tier > ?3 order by name, queue, tier limit 1)
      union all select * from ({_NEXT} name = ?1 and queue > ?2 order by name, queue, tier limit 1)
      union all select * from ({_NEXT} name > ?1 order by name, queue, tier limit 1)
      limit 1)""",
)
_OF_LINE = "name = ?1 and queue = ?2 and tier = ?3"
COUNT = f"select count(*) from (select 1 from held_back where {_OF_LINE} limit ?4)"
_GROUP = "(select iif(json_valid(text), json_extract(text, '$.group'), null) from extras where job_id = it.id)"
FIRST = Select(
    f"it.id, jobs.handler, it.priority, it.age, {_GROUP}",
    f"""from (
      select job_id as id, priority, age from held_back
      where {_OF_LINE} order by name, queue, tier, priority desc, age limit ?4) as it
    left join jobs on jobs.id = it.id and jobs.state = {BLOCKED} and jobs.age = it.age""",
)
FORGET_CHANGED = "delete from held_back where job_id in (select value from json_each(?))"

FIRST_READY = Select(
    f"id, handler, priority, age, {_GROUP}",
    f"""from (
      select id, handler, priority, age from jobs
      where state = {READY} and queue = ? and tier = ? and queue not in (select queue from queues where paused)
      order by priority desc, age limit ?) as it""",
)
HELD_NOW = f"""
  select json_group_array(json_array(id, name)) from (
    select id, case
        when handler in (select value from json_each(?4)) then '{HANDLER}' || handler
        when {_GROUP} in (select value from json_each(?5)) then '{GROUP}' || {_GROUP} end as name
    from (select id, handler from jobs where state = {READY} and queue = ?1 and tier = ?2 order by priority desc, age limit ?3) as it)
  where name is not null"""
ADD_HELD = """
  insert or replace into held_back(job_id, name, queue, tier, priority, age)
  select jobs.id, json_extract(it.value, '$[1]'), queue, tier, priority, age
  from json_each(?) as it cross join jobs on jobs.id = json_extract(it.value, '$[0]')"""
LEAVE = """
  delete from held_back
  where job_id in (select value from json_each(?)) and age = (select age from jobs where jobs.id = held_back.job_id)"""
MAKE_READY = f"update jobs set state = {READY} where id = ? and state = {BLOCKED}"

ENDED_GROUPS = Select(
    "name",
    f"from (select distinct name from limited_leases where {_OF_GROUPS} and not exists (select 1 from jobs where {_IS_LIVE}) limit ?)",
)
OPEN_LINES = Select(
    "name, queue, tier",
    "from (select * from group_lines where queue = ? and tier = ? and open_at <= ? order by queue, tier, open_at limit ?)",
)
# The batch has [queue, name] of each line.
OPEN_ENDED = """
  update group_lines set open_at = ?1 from json_each(?2) as it
  where queue = json_extract(it.value, '$[0]') and name = json_extract(it.value, '$[1]') and tier in (0, 1)"""
ADD_LINE = f"insert into group_lines(queue, tier, name, open_at) values (?, ?, ?, ?) {_OPEN}"
CLOSE = "update group_lines set open_at = ?4 where queue = ?2 and tier = ?3 and name = ?1"
REMOVE_EMPTY = f"""
  delete from group_lines where queue = ?2 and tier = ?3 and name = ?1
    and not exists (select 1 from held_back where {_OF_LINE})"""
WAITS_FOR_AN_END = """
  select exists(select 1 from group_lines where queue = ?1 and tier = 0 and open_at is null)
    or exists(select 1 from group_lines where queue = ?1 and tier = 1 and open_at is null)"""
NEXT_OPEN = """
  select min(it.next) from (
    select (select min(open_at) from group_lines where queue = ?1 and tier = its.tier and open_at > ?2) as next
    from (select 0 as tier union all select 1) as its) as it"""
NEXT_QUEUE = "select min(queue) from group_lines where queue > ?"
LINES_OF_GROUPS = Select("name, queue, tier", "from (select * from group_lines where queue = ? limit ?)")
IN_FLIGHT_GROUPS = Select(
    "id, token, grp",
    f"""from (select id, token, {_GROUP} as grp from jobs as it where state = {IN_FLIGHT} and queue = ?) where grp is not null""",
)
OPEN_ALL = "update group_lines set open_at = ?2 where queue = ?1"
LAST_OPEN = """
  select max(it.last) from (
    select (select max(open_at) from group_lines where queue = ?1 and tier = its.tier) as last
    from (select 0 as tier union all select 1) as its) as it"""
SET_STATE = "update jobs set state = ? where id in (select value from json_each(?))"


def leave_line(connection: Connection, id: int) -> bool:
    """Make this job ready if a limit holds it back, without a count. Return whether that was so."""
    if not connection.run(LEAVE, packed([id])):
        return False
    return bool(connection.run(MAKE_READY, id))


def forget_times(connection: Connection, limit: int) -> None:
    """Forget the claims of groups that count no longer, of up to `limit` groups."""
    connection.run(FORGET_TIMES, connection.now(), limit)


class LimitRows:
    """Implements `supervisor.stores.limited_claims.LimitRows`."""

    def __init__(self, connection: Connection, claim_ready: ClaimReady, paused: Callable[[], frozenset[str]]) -> None:
        self._connection, self._claim_ready, self.paused = connection, claim_ready, paused

    def now(self) -> int:
        return self._connection.now()

    def uses(self, limits: Mapping[str, Limit]) -> dict[str, Use]:
        rows = self._connection.rows(USES, packed(list(limits)))
        return {name: Use(live, times_of(times)) for name, times, live in rows}

    def lock(self, name: str, limit: Limit) -> bool:
        self._connection.run(FORGET_ENDED, name)
        return True

    def begin(self, name: str, limit: Limit) -> None:
        if limit.running is not None:
            self._connection.run(BEGIN, name)

    def note(self, name: str, limit: Limit, leases: Sequence[Lease], times: Times | None) -> None:
        if limit.running is not None:
            self._connection.run(ADD_LEASES, name, packed([(lease[LEASE_ID], lease[LEASE_TOKEN]) for lease in leases]))
        if times is not None:
            until = times[-1][0] + limit.per if name.startswith(GROUP) else None
            self._connection.run(KEEP_TIMES, name, orjson.dumps(times).decode(), until)

    def lines(self, behind: Line, limit: int) -> list[Line]:
        found: list[Line] = []
        while len(found) < limit and (rows := self._connection.rows(NEXT_LINE, *behind)):
            behind = (rows[0][0], rows[0][1], rows[0][2])
            found.append(behind)
        return found

    def count(self, line: Line, most: int) -> int:
        return int(self._connection.value(COUNT, *line, most))

    def first(self, line: Line, limit: int) -> list[Candidate]:
        for _ in range(MAX_PARTS):
            rows = self._connection.rows(FIRST, *line, limit)
            changed = [id for id, handler, *_ in rows if handler is None]
            if not changed:
                break
            self._connection.run(FORGET_CHANGED, packed(changed))
        return [Candidate(*row)._replace(line=line) for row in rows if row[1] is not None]

    def ready(self, queue: str, tier: int, limit: int) -> list[Candidate]:
        return [Candidate(*row) for row in self._connection.rows(FIRST_READY, queue, tier, limit)]

    def hold(self, queue: str, tier: int, handlers: Collection[str], groups: Collection[str], among: int) -> int:
        found = self._connection.json(HELD_NOW, queue, tier, among, packed(list(handlers)), packed(list(groups)))
        self._connection.run(ADD_HELD, packed(found))
        self._move(queue, tier, [id for id, _ in found], READY, BLOCKED)
        now, names = self.now(), {name for _, name in found if name.startswith(GROUP)}
        self._connection.run_many(ADD_LINE, [(queue, tier, name, now) for name in names])
        return len(found)

    def resume(self, line: Line, ids: Sequence[int]) -> None:
        _, queue, tier = line
        self._connection.run(LEAVE, packed(ids))
        self._move(queue, tier, ids, BLOCKED, READY)

    def _move(self, queue: str, tier: int, ids: Sequence[int], before: int, state: int) -> None:
        self._connection.run(SET_STATE, state, packed(ids))
        self._connection.counts.add(before, queue, tier, -len(ids))
        self._connection.counts.add(state, queue, tier, len(ids))

    def claim(self, queue: str, ids: Sequence[int], ttl: float, resolve: Resolve) -> list[Lease]:
        return self._claim_ready(ids, ttl, resolve)

    def lock_all(self, names: Collection[str]) -> set[str]:
        return set(names)

    def begin_groups(self, queue: str, limit: Limit) -> None:
        rows = self._connection.rows(IN_FLIGHT_GROUPS, queue) if limit.running is not None else []
        for id, token, group in rows:
            self._connection.run(ADD_LEASES, name_of_group(queue, group), packed([(id, token)]))

    def open_all(self, queue: str) -> None:
        self._connection.run(OPEN_ALL, queue, 0)

    def ended_groups(self, limit: int) -> list[str]:
        return [name for (name,) in self._connection.rows(ENDED_GROUPS, limit)]

    def open_ended(self, names: Collection[str]) -> None:
        for name in names:
            self._connection.run(FORGET_ENDED, name)
        lines = [(queue, GROUP + group) for queue, group in map(group_of, names)]
        self._connection.run(OPEN_ENDED, self.now(), packed(lines))

    def open_lines(self, queue: str, tier: int, limit: int) -> list[Line]:
        return [
            (name, queue, tier)
            for name, queue, tier in self._connection.rows(OPEN_LINES, queue, tier, self.now(), limit)
        ]

    def close(self, line: Line, until: int | None) -> None:
        if not self._connection.run(REMOVE_EMPTY, *line):
            self._connection.run(CLOSE, *line, until)

    def closed(self, queue: str) -> tuple[bool, int | None, int | None]:
        value = self._connection.value
        return bool(value(WAITS_FOR_AN_END, queue)), value(NEXT_OPEN, queue, self.now()), value(LAST_OPEN, queue)

    def queues_of_groups(self) -> list[str]:
        found, behind = list[str](), ""
        while (queue := self._connection.value(NEXT_QUEUE, behind)) is not None:
            behind = queue.decode() if isinstance(queue, bytes) else queue
            found.append(behind)
        return found

    def lines_of_groups(self, queue: str, limit: int) -> list[Line]:
        return [(name, queue, tier) for name, queue, tier in self._connection.rows(LINES_OF_GROUPS, queue, limit)]
