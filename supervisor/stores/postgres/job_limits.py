"""Claims under limits in PostgreSQL.

Whoever claims jobs under a limit takes a lock for its name first, without a wait, and counts with the next statement, which sees what was
committed meanwhile. So no claim waits for a session that is stopped, and no two sessions count at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import orjson

from supervisor.jobs import Lease
from supervisor.stores.codes import BLOCKED, IN_FLIGHT, READY
from supervisor.stores.job_limits import Limit, Line, Times, Use, name_of_handler, name_of_queue, times_of
from supervisor.stores.limited_claims import Candidate
from supervisor.stores.postgres.connection import NOW, Connection, array
from supervisor.stores.postgres.counts import Counts
from supervisor.stores.records import Resolve

FORGOTTEN_AT_ONCE = 1000
ClaimReady = Callable[[str, Sequence[int], float, Resolve], list[Lease]]

# `times` is a JSON list of [when, how many claims]. A lease counts only while its job is in flight under its token. A job that is
# held back is blocked, and has a row until it is claimed, or is changed by somebody else: then its state or its age is another.
LIMIT_TABLES = (
    """create table {s}.limits(name text collate "C" primary key, times text not null) with (fillfactor = 50)""",
    """create table {s}.limited_leases(
      name text collate "C", job_id bigint, token bigint not null, primary key(name, job_id))""",
    """create table {s}.held_back(
      job_id bigint primary key, age bigint not null, priority bigint not null, tier smallint not null,
      handler text collate "C" not null, queue text collate "C" not null)""",
    "create index held_back_lines on {s}.held_back(handler, queue, tier, priority desc, age, job_id)",
)

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
KEEP_TIMES = (
    "insert into {s}.limits(name, times) values ($1, $2) on conflict (name) do update set times = excluded.times"
)

_NEXT = "order by handler, queue, tier limit 1"
LINES = f"""
  with recursive it as (
    (select handler, queue, tier, 1 as n from {{s}}.held_back where (handler, queue, tier) > ($1, $2, $3::smallint) {_NEXT})
    union all
    select following.*, n + 1 from it cross join lateral (
      select handler, queue, tier from {{s}}.held_back as more
      where (more.handler, more.queue, more.tier) > (it.handler, it.queue, it.tier) {_NEXT}) as following
    where n < $4)
  select handler, queue, tier from it order by n"""
_OF_LINE = "held_back.handler = $1 and held_back.queue = $2 and held_back.tier = $3"
_IN_ORDER = "order by held_back.priority desc, held_back.age, held_back.job_id limit $4"
COUNT = f"select count(*) from (select from {{s}}.held_back where {_OF_LINE} limit $4) as it"
_IS_HELD = f"jobs.id = held_back.job_id and jobs.state + 0 = {BLOCKED} and jobs.age = held_back.age"
FIRST = f"""
  with first as materialized (select job_id, age from {{s}}.held_back where {_OF_LINE} {_IN_ORDER})
  select jobs.id, jobs.handler, jobs.priority, jobs.age from first as held_back join {{s}}.jobs on {_IS_HELD}
  order by jobs.priority desc, jobs.age, jobs.id for no key update of jobs skip locked"""
FORGET_CHANGED = f"""
  with first as materialized (
    select job_id, age from {{s}}.held_back where {_OF_LINE} {_IN_ORDER} for update skip locked)
  delete from {{s}}.held_back where job_id = any(array(
    select job_id from first as held_back where not exists (select from {{s}}.jobs where {_IS_HELD})))"""

FIRST_READY = f"""
  select id, handler, priority, age from {{s}}.jobs
  where state = {READY} and queue = $1 and tier = $2 and $1 not in (select queue from {{s}}.queues where paused)
  order by priority desc, age, id limit $3
  for no key update skip locked"""
HOLD = f"""
  with first as materialized (
    select id, handler from {{s}}.jobs where state = {READY} and queue = $1 and tier = $2
    order by priority desc, age, id limit $3),
  found as materialized (
    select id from {{s}}.jobs
    where id = any(array(select id from first where handler = any($4::text[]))) and state + 0 = {READY}
    order by id for no key update skip locked),
  moved as (
    update {{s}}.jobs set state = {BLOCKED} from found where jobs.id = found.id
    returning jobs.id, jobs.age, priority, tier, handler, queue),
  held as (
    insert into {{s}}.held_back(job_id, age, priority, tier, handler, queue) select * from moved
    on conflict (job_id) do update set age = excluded.age, priority = excluded.priority, tier = excluded.tier,
      handler = excluded.handler, queue = excluded.queue)
  select count(*) from moved"""
LEAVE = "delete from {s}.held_back where job_id = any($1::bigint[])"
MAKE_READY = f"update {{s}}.jobs set state = {READY} where id = any($1::bigint[]) and state + 0 = {BLOCKED}"


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
            self._connection.later(KEEP_TIMES, name, orjson.dumps(times).decode())

    def lines(self, behind: Line, limit: int) -> list[Line]:
        return [(handler, queue, tier) for handler, queue, tier in self._connection.rows(LINES, *behind, limit)]

    def count(self, line: Line, most: int) -> int:
        return int(self._connection.value(COUNT, *line, most))

    def first(self, line: Line, limit: int) -> list[Candidate]:
        self._connection.later(FORGET_CHANGED, *line, max(limit, FORGOTTEN_AT_ONCE))
        return [Candidate(*row)._replace(held=True) for row in self._connection.rows(FIRST, *line, limit)]

    def ready(self, queue: str, tier: int, limit: int) -> list[Candidate]:
        return [Candidate(*row) for row in self._connection.rows(FIRST_READY, queue, tier, limit)]

    def hold(self, queue: str, tier: int, handlers: Collection[str], among: int) -> int:
        held = int(self._connection.value(HOLD, queue, tier, among, list(handlers)))
        self._count(queue, tier, READY, BLOCKED, held)
        return held

    def resume(self, line: Line, ids: Sequence[int]) -> None:
        """Make jobs ready that `first` has locked."""
        _, queue, tier = line
        self._connection.later(LEAVE, array(ids))
        self._connection.later(MAKE_READY, array(ids))
        self._count(queue, tier, BLOCKED, READY, len(ids))

    def _count(self, queue: str, tier: int, before: int, state: int, n: int) -> None:
        self._counts.add(before, queue, tier, -n)
        self._counts.add(state, queue, tier, n)
