"""Claims under limits in SQLite. Whoever has the write lock has locked all limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import orjson

from supervisor.jobs import LEASE_ID, LEASE_TOKEN, Lease
from supervisor.stores.codes import BLOCKED, IN_FLIGHT, READY
from supervisor.stores.job_limits import Limit, Line, Times, Use, name_of_handler, name_of_queue, times_of
from supervisor.stores.limited_claims import Candidate
from supervisor.stores.records import Resolve
from supervisor.stores.sqlite.connection import Connection, Select, packed

MAX_PARTS = 100
"""One call removes so many parts of a line that were changed by others."""
ClaimReady = Callable[[Sequence[int], float, Resolve], list[Lease]]

# `times` is a JSON list of [when, how many claims]. A lease counts only while its job is in flight under its token. A job that is
# held back is blocked, and has a row until it is claimed, or is changed by somebody else: then its state or its age is another.
LIMIT_TABLES = (
    "create table limits(name text primary key, times text not null) without rowid",
    "create table limited_leases(name text, job_id int, token int not null, primary key(name, job_id)) without rowid",
    """create table held_back(handler text, queue text, tier int, priority int, age int, job_id int,
      primary key(handler, queue, tier, priority desc, age, job_id)) without rowid""",
)
HELD_BACK_GONE = """delete from held_back where handler = old.handler and queue = old.queue and tier = old.tier
        and priority = old.priority and age = old.age and job_id = old.id"""
HELD_BACK_MOVED = """update held_back set queue = new.queue where handler = old.handler and queue = old.queue and tier = old.tier
        and priority = old.priority and age = old.age and job_id = old.id"""

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
KEEP_TIMES = "insert or replace into limits(name, times) values (?, ?)"

# A comparison of all three columns at once would walk to the end of the line.
_NEXT = "select handler, queue, tier from held_back where"
NEXT_LINE = Select(
    "handler, queue, tier",
    f"""from (
      select * from ({_NEXT} handler = ?1 and queue = ?2 and tier > ?3 order by handler, queue, tier limit 1)
      union all select * from ({_NEXT} handler = ?1 and queue > ?2 order by handler, queue, tier limit 1)
      union all select * from ({_NEXT} handler > ?1 order by handler, queue, tier limit 1)
      limit 1)""",
)
_OF_LINE = "handler = ?1 and queue = ?2 and tier = ?3"
COUNT = f"select count(*) from (select 1 from held_back where {_OF_LINE} limit ?4)"
FIRST = Select(
    "it.job_id, it.priority, it.age, jobs.id is not null",
    f"""from (
      select * from held_back where {_OF_LINE} order by handler, queue, tier, priority desc, age, job_id limit ?4) as it
    left join jobs on jobs.id = it.job_id and jobs.state = {BLOCKED} and jobs.age = it.age""",
)
LEAVE_LINE = """
  delete from held_back where handler = ? and queue = ? and tier = ? and job_id = ? and priority = ? and age = ?"""

FIRST_READY = Select(
    "id, handler, priority, age",
    f"""from (
      select id, handler, priority, age from jobs
      where state = {READY} and queue = ? and tier = ? and queue not in (select queue from queues where paused)
      order by priority desc, age limit ?)""",
)
HELD_NOW = f"""
  select json_group_array(id) from (
    select id, handler from jobs where state = {READY} and queue = ? and tier = ? order by priority desc, age limit ?)
  where handler in (select value from json_each(?))"""
ADD_HELD = """
  insert or ignore into held_back(handler, queue, tier, priority, age, job_id)
  select handler, queue, tier, priority, age, jobs.id from json_each(?) as it cross join jobs on jobs.id = it.value"""
LEAVE = """
  delete from held_back where (handler, queue, tier, priority, age, job_id) in (
    select handler, queue, tier, priority, age, jobs.id from json_each(?) as it cross join jobs on jobs.id = it.value)"""
MAKE_READY = f"update jobs set state = {READY} where id = ? and state = {BLOCKED}"
SET_STATE = "update jobs set state = ? where id in (select value from json_each(?))"


def leave_line(connection: Connection, id: int) -> bool:
    """Make this job ready if a limit holds it back, without a count. Return whether that was so."""
    if not connection.run(LEAVE, packed([id])):
        return False
    return bool(connection.run(MAKE_READY, id))


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
            self._connection.run(KEEP_TIMES, name, orjson.dumps(times).decode())

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
            changed = [(*line, *place) for *place, is_held in rows if not is_held]
            if not changed:
                break
            self._connection.run_many(LEAVE_LINE, changed)
        return [Candidate(id, line[0], priority, age, held=True) for id, priority, age, is_held in rows if is_held]

    def ready(self, queue: str, tier: int, limit: int) -> list[Candidate]:
        return [Candidate(*row) for row in self._connection.rows(FIRST_READY, queue, tier, limit)]

    def hold(self, queue: str, tier: int, handlers: Collection[str], among: int) -> int:
        ids = self._connection.json(HELD_NOW, queue, tier, among, packed(list(handlers)))
        self._connection.run(ADD_HELD, packed(ids))
        self._move(queue, tier, ids, READY, BLOCKED)
        return len(ids)

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
