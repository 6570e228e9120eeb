"""Claims under limits in PostgreSQL.

Whoever claims jobs under a limit takes a lock for its name first, without a wait, and counts with the next statement, which sees what was
committed meanwhile. So no claim waits for a session that is stopped, and no two sessions count at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import orjson

from supervisor.jobs import Lease
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
from supervisor.stores.postgres.connection import NOW, Connection, array
from supervisor.stores.postgres.counts import Counts
from supervisor.stores.records import Resolve

FORGOTTEN_AT_ONCE = 1000
ClaimReady = Callable[[str, Sequence[int], float, Resolve], list[Lease]]

# `times` is a JSON list of [when, how many claims]. The row of a group has the time `until` which they count, and is removed after it.
# A lease counts only while its job is in flight under its token. A job that is held back is blocked, and has a row until it is claimed,
# or is changed by somebody else: then its state or its age is another. The line of a group is open from `open_at` on; without a time it
# is closed until a lease of the group has ended.
LIMITS_UNTIL = "create index limits_until on {s}.limits(until) where until is not null"
HELD_BACK_TABLES = (
    """create table {s}.held_back(
      job_id bigint primary key, age bigint not null, priority bigint not null, tier smallint not null,
      name text collate "C" not null, queue text collate "C" not null)""",
    "create index held_back_lines on {s}.held_back(name, queue, tier, priority desc, age, job_id)",
    """create table {s}.group_lines(
      queue text collate "C", tier smallint, name text collate "C", open_at bigint, primary key(name, queue, tier))""",
    "create index open_lines on {s}.group_lines(queue, tier, open_at)",
)
LIMIT_TABLES = (
    """create table {s}.limits(name text collate "C" primary key, times text not null, until bigint)
      with (fillfactor = 50)""",
    LIMITS_UNTIL,
    """create table {s}.limited_leases(
      name text collate "C", job_id bigint, token bigint not null, primary key(name, job_id))""",
    *HELD_BACK_TABLES,
)
_OF_GROUPS = f"name >= '{GROUP}' and name < '{GROUP.rstrip()}!'"
_OPEN = "on conflict (name, queue, tier) do update set open_at = excluded.open_at"
# For the trigger that runs after a job has another queue.
HELD_BACK_MOVED = f"""update {{s}}.held_back set queue = new.queue where job_id = new.id;
        insert into {{s}}.group_lines(queue, tier, name, open_at)
          select queue, tier, name, 0 from {{s}}.held_back where job_id = new.id and {_OF_GROUPS} {_OPEN}"""

_IS_LIVE = f"jobs.id = limited_leases.job_id and jobs.token = limited_leases.token and jobs.state + 0 = {IN_FLIGHT}"
USES = f"""
  select it.name, limits.times, (
    select count(*) from {{s}}.limited_leases join {{s}}.jobs on {_IS_LIVE} where limited_leases.name = it.name)
  from unnest($1::text[]) as it(name) left join {{s}}.limits on limits.name = it.name"""
LOCK = "select pg_try_advisory_xact_lock(hashtextextended($1, 0))"
FORGET_ENDED = f"""
  delete from {{s}}.limited_leases where name = $1 and not exists (select from {{s}}.jobs where {_IS_LIVE})"""
BEGIN = f"""
  insert into {{s}}.limited_leases(name, job_id, token)
  select $1, id, token from {{s}}.jobs
  where state = {IN_FLIGHT} and $1 in ('{name_of_queue("")}' || queue, '{name_of_handler("")}' || handler)
  on conflict (name, job_id) do update set token = excluded.token"""
ADD_LEASES = """
  insert into {s}.limited_leases(name, job_id, token) select $1, * from unnest($2::bigint[], $3::bigint[])
  on conflict (name, job_id) do update set token = excluded.token"""
KEEP_TIMES = """
  insert into {s}.limits(name, times, until) values ($1, $2, $3)
  on conflict (name) do update set times = excluded.times, until = excluded.until"""
FORGET_TIMES = f"""
  delete from {{s}}.limits where name = any(array(
    select name from (
      select name from {{s}}.limits where until <= {NOW} order by until limit $1 for update skip locked) as past
    where pg_try_advisory_xact_lock(hashtextextended($2 || ' ' || name, 0)))) and until <= {NOW}"""

_NEXT = "order by name, queue, tier limit 1"
LINES = f"""
  with recursive it as (
    (select name, queue, tier, 1 as n from {{s}}.held_back where (name, queue, tier) > ($1, $2, $3::smallint) {_NEXT})
    union all
    select following.*, n + 1 from it cross join lateral (
      select name, queue, tier from {{s}}.held_back as more
      where (more.name, more.queue, more.tier) > (it.name, it.queue, it.tier) {_NEXT}) as following
    where n < $4)
  select name, queue, tier from it order by n"""
_OF_LINE = "held_back.name = $1 and held_back.queue = $2 and held_back.tier = $3"
_IN_ORDER = "order by held_back.priority desc, held_back.age, held_back.job_id limit $4"
COUNT = f"select count(*) from (select from {{s}}.held_back where {_OF_LINE} limit $4) as it"
_IS_HELD = f"jobs.id = held_back.job_id and jobs.state + 0 = {BLOCKED} and jobs.age = held_back.age"
_GROUP = "(select text::json ->> 'group' from {s}.extras where extras.job_id = jobs.id)"
FIRST = f"""
  with first as materialized (select job_id, age from {{s}}.held_back where {_OF_LINE} {_IN_ORDER})
  select jobs.id, jobs.handler, jobs.priority, jobs.age, {_GROUP} from first as held_back join {{s}}.jobs on {_IS_HELD}
  order by jobs.priority desc, jobs.age, jobs.id for no key update of jobs skip locked"""
FORGET_CHANGED = f"""
  with first as materialized (
    select job_id, age from {{s}}.held_back where {_OF_LINE} {_IN_ORDER} for update skip locked)
  delete from {{s}}.held_back where job_id = any(array(
    select job_id from first as held_back where not exists (select from {{s}}.jobs where {_IS_HELD})))"""

FIRST_READY = f"""
  select id, handler, priority, age, {_GROUP} from {{s}}.jobs
  where state = {READY} and queue = $1 and tier = $2 and $1 not in (select queue from {{s}}.queues where paused)
  order by priority desc, age, id limit $3
  for no key update skip locked"""
HOLD = f"""
  with first as materialized (
    select id, handler from {{s}}.jobs where state = {READY} and queue = $1 and tier = $2
    order by priority desc, age, id limit $3),
  named as materialized (
    select id, case when handler = any($4::text[]) then '{HANDLER}' || handler
      when {_GROUP} = any($5::text[]) then '{GROUP}' || {_GROUP} end as name from first as jobs),
  found as materialized (
    select id from {{s}}.jobs where id = any(array(select id from named where name is not null)) and state + 0 = {READY}
    order by id for no key update skip locked),
  moved as (
    update {{s}}.jobs set state = {BLOCKED} from found join named on named.id = found.id where jobs.id = found.id
    returning jobs.id, jobs.age, priority, tier, name, queue),
  held as (
    insert into {{s}}.held_back(job_id, age, priority, tier, name, queue) select * from moved
    on conflict (job_id) do update set age = excluded.age, priority = excluded.priority, tier = excluded.tier,
      name = excluded.name, queue = excluded.queue),
  opened as (
    insert into {{s}}.group_lines(queue, tier, name, open_at)
    select distinct queue, tier, name, {NOW} from moved where {_OF_GROUPS} order by name {_OPEN})
  select count(*) from moved"""
LEAVE = "delete from {s}.held_back where job_id = any($1::bigint[])"
MAKE_READY = f"update {{s}}.jobs set state = {READY} where id = any($1::bigint[]) and state + 0 = {BLOCKED}"

LOCK_ALL = """
  select name from unnest($1::text[]) as it(name) where pg_try_advisory_xact_lock(hashtextextended($2 || ' ' || name, 0))"""
ENDED_GROUPS = f"""
  select distinct name from {{s}}.limited_leases where {_OF_GROUPS} and not exists (select from {{s}}.jobs where {_IS_LIVE}) limit $1"""
FORGET_ENDED_OF = f"""
  delete from {{s}}.limited_leases where name = any($1::text[]) and not exists (select from {{s}}.jobs where {_IS_LIVE})"""
OPEN_LINES = """
  select name, queue, tier from {s}.group_lines where queue = $1 and tier = $2 and open_at <= $3 order by open_at limit $4"""
OPEN_ENDED = f"""
  update {{s}}.group_lines set open_at = {NOW} from unnest($1::text[], $2::text[]) as it(queue, name)
  where group_lines.queue = it.queue and group_lines.name = it.name"""
_LINE = "group_lines.name = $1 and group_lines.queue = $2 and group_lines.tier + 0 = $3"
CLOSE = f"update {{s}}.group_lines set open_at = $4 where {_LINE}"
REMOVE_EMPTY = (
    f"delete from {{s}}.group_lines where {_LINE} and not exists (select from {{s}}.held_back where {_OF_LINE})"
)
# The order, and `tier + 0`, make the planner use the right index. Lines without a time come last.
_OF_TIER = "from {s}.group_lines where queue = $1 and tier ="
_LAST = "order by queue desc, tier desc, open_at desc limit 1"
CLOSED = f"""
  select coalesce((select open_at is null {_OF_TIER} 0 {_LAST}), false) or coalesce((select open_at is null {_OF_TIER} 1 {_LAST}), false),
    least((select min(open_at) {_OF_TIER} 0 and open_at > $2), (select min(open_at) {_OF_TIER} 1 and open_at > $2)),
    greatest((select max(open_at) {_OF_TIER} 0), (select max(open_at) {_OF_TIER} 1))"""
LOCK_LINE = f"select from {{s}}.group_lines where {_LINE} for update skip locked"
QUEUES_OF_GROUPS = """
  with recursive it as (
    select min(queue) as queue from {s}.group_lines
    union all
    select (select min(queue) from {s}.group_lines where queue > it.queue) from it where it.queue is not null)
  select queue from it where queue is not null"""
LINES_OF_GROUPS = "select name, queue, tier from {s}.group_lines where queue = $1 limit $2"
IN_FLIGHT_GROUPS = f"""
  select id, grp from (select id, {_GROUP} as grp from {{s}}.jobs where state = {IN_FLIGHT} and queue = $1) as it
  where grp is not null"""
# A token grows with each claim of a job.
ADD_GROUP_LEASES = f"""
  insert into {{s}}.limited_leases(name, job_id, token)
  select it.name, jobs.id, jobs.token from unnest($1::text[], $2::bigint[]) as it(name, id)
  join {{s}}.jobs on jobs.id = it.id and jobs.state + 0 = {IN_FLIGHT}
  on conflict (name, job_id) do update set token = greatest(limited_leases.token, excluded.token)"""
OPEN_ALL = """
  update {s}.group_lines set open_at = 0 where (queue, tier, name) in (
    select queue, tier, name from {s}.group_lines where queue = $1 for update skip locked)"""


def forget_times(connection: Connection, limit: int) -> None:
    """Forget the claims of groups that count no longer, of up to `limit` groups."""
    connection.run(FORGET_TIMES, limit, connection.schema)


class LimitRows:
    """Implements `supervisor.stores.limited_claims.LimitRows`."""

    def __init__(
        self, connection: Connection, counts: Counts, claim_ready: ClaimReady, paused: Callable[[], frozenset[str]]
    ) -> None:
        self._connection, self._counts, self.claim, self.paused = connection, counts, claim_ready, paused

    def now(self) -> int:
        return int(self._connection.value(f"select {NOW}"))

    def uses(self, limits: Mapping[str, Limit]) -> dict[str, Use]:
        rows = self._connection.rows(USES, list(limits))
        return {name: Use(live, times_of(times)) for name, times, live in rows}

    def lock(self, name: str, limit: Limit) -> bool:
        if not self._connection.value(LOCK, f"{self._connection.schema} {name}"):
            return False
        self._connection.later(FORGET_ENDED, name)
        return True

    def begin(self, name: str, limit: Limit) -> None:
        if limit.running is not None:
            self._connection.later(BEGIN, name)

    def note(self, name: str, limit: Limit, leases: Sequence[Lease], times: Times | None) -> None:
        if limit.running is not None:
            ids, tokens = array(lease.id for lease in leases), array(lease.token for lease in leases)
            self._connection.later(ADD_LEASES, name, ids, tokens)
        if times is not None:
            until = times[-1][0] + limit.per if name.startswith(GROUP) else None
            self._connection.later(KEEP_TIMES, name, orjson.dumps(times).decode(), until)

    def lines(self, behind: Line, limit: int) -> list[Line]:
        return [(name, queue, tier) for name, queue, tier in self._connection.rows(LINES, *behind, limit)]

    def count(self, line: Line, most: int) -> int:
        return int(self._connection.value(COUNT, *line, most))

    def first(self, line: Line, limit: int) -> list[Candidate]:
        self._connection.later(FORGET_CHANGED, *line, max(limit, FORGOTTEN_AT_ONCE))
        return [Candidate(*row)._replace(line=line) for row in self._connection.rows(FIRST, *line, limit)]

    def ready(self, queue: str, tier: int, limit: int) -> list[Candidate]:
        return [Candidate(*row) for row in self._connection.rows(FIRST_READY, queue, tier, limit)]

    def hold(self, queue: str, tier: int, handlers: Collection[str], groups: Collection[str], among: int) -> int:
        held = int(self._connection.value(HOLD, queue, tier, among, list(handlers), list(groups)))
        self._count(queue, tier, READY, BLOCKED, held)
        return held

    def resume(self, line: Line, ids: Sequence[int]) -> None:
        """Make jobs ready that `first` has locked."""
        _, queue, tier = line
        self._connection.later(LEAVE, array(ids))
        self._connection.later(MAKE_READY, array(ids))
        self._count(queue, tier, BLOCKED, READY, len(ids))

    def lock_all(self, names: Collection[str]) -> set[str]:
        return {name for (name,) in self._connection.rows(LOCK_ALL, sorted(names), self._connection.schema)}

    def begin_groups(self, queue: str, limit: Limit) -> None:
        if limit.running is not None and (rows := self._connection.rows(IN_FLIGHT_GROUPS, queue)):
            ids, groups = zip(*rows, strict=True)
            names = [name_of_group(queue, group) for group in groups]
            self._connection.later(ADD_GROUP_LEASES, names, array(ids))

    def open_all(self, queue: str) -> None:
        self._connection.later(OPEN_ALL, queue)

    def ended_groups(self, limit: int) -> list[str]:
        return [name for (name,) in self._connection.rows(ENDED_GROUPS, limit)]

    def open_ended(self, names: Collection[str]) -> None:
        queues, groups = zip(*map(group_of, names), strict=True) if names else ((), ())
        self._connection.later(FORGET_ENDED_OF, list(names))
        self._connection.later(OPEN_ENDED, list(queues), [GROUP + group for group in groups])

    def open_lines(self, queue: str, tier: int, limit: int) -> list[Line]:
        rows = self._connection.rows(OPEN_LINES, queue, tier, self.now(), limit)
        return [(name, queue, tier) for name, queue, tier in rows]

    def close(self, line: Line, until: int | None) -> None:
        if self._connection.rows(LOCK_LINE, *line):  # the next statements see what was committed before that
            self._connection.later(REMOVE_EMPTY, *line)
            self._connection.later(CLOSE, *line, until)

    def closed(self, queue: str) -> tuple[bool, int | None, int | None]:
        ((waits_for_an_end, until, last),) = self._connection.rows(CLOSED, queue, self.now())
        return waits_for_an_end, until, last

    def queues_of_groups(self) -> list[str]:
        return [queue for (queue,) in self._connection.rows(QUEUES_OF_GROUPS)]

    def lines_of_groups(self, queue: str, limit: int) -> list[Line]:
        return [(name, queue, tier) for name, queue, tier in self._connection.rows(LINES_OF_GROUPS, queue, limit)]

    def _count(self, queue: str, tier: int, before: int, state: int, n: int) -> None:
        self._counts.add(before, queue, tier, -n)
        self._counts.add(state, queue, tier, n)
