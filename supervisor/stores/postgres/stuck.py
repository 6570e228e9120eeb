"""The blocked jobs in PostgreSQL that wait for a job that has ended without success: see `supervisor.stores.stuck`."""

from __future__ import annotations

from typing import Any

from supervisor.stores.codes import BLOCKED, CANCELLED, FAILED
from supervisor.stores.postgres.connection import Connection
from supervisor.stores.postgres.keys import KEEPS_ITS_KEY
from supervisor.stores.stuck import MAX_LOOKED_AT, MAX_STUCK, MAX_WAITING, stuck_rows
from supervisor.stores.workflows import WAIT, WAITS


def _last(state: int) -> str:
    return f"(select id from {{s}}.jobs where state = {state} order by finished_at desc limit {MAX_LOOKED_AT})"


# `offset 0` keeps a planner that does not know the tables from reading all of their rows.
_OLDEST_BLOCKED = f"(select id from {{s}}.jobs where state = {BLOCKED} order by id limit {MAX_LOOKED_AT}) as it"
_EXAMINED = f"""
  with examined(id) as materialized (
    {_last(FAILED)} union {_last(CANCELLED)}
    union (
      select its.parent from {_OLDEST_BLOCKED} cross join lateral (
        select parent from {{s}}.parents where child = it.id and link = {WAITS} offset 0) as its
      limit {2 * MAX_LOOKED_AT})
    union
    select holder.job_id from {_OLDEST_BLOCKED}
      cross join lateral (select key from {{s}}.extras where extras.job_id = it.id and key is not null offset 0) as its
      cross join lateral (select job_id from {{s}}.key_holders where key_holders.key = its.key offset 0) as holder)"""
HELD_KEYS = f"""{_EXAMINED}
  select examined.id, its.handler, its.state, key_holders.key, (
    select count(*) from (
      select from {{s}}.key_waiters where key_waiters.key = key_holders.key limit {MAX_WAITING}) as those)
  from examined
    cross join lateral (select key, job_id from {{s}}.key_holders where key_holders.job_id = examined.id offset 0) as key_holders
    cross join lateral (select handler, state from {{s}}.jobs where jobs.id = examined.id offset 0) as its
  where {KEEPS_ITS_KEY} and exists (select from {{s}}.key_waiters where key_waiters.key = key_holders.key)
  order by examined.id limit {MAX_STUCK}"""
# Few links of each parent are read: it may have very many children that do not wait for it any more.
FAILED_PARENTS = f"""{_EXAMINED}
  select examined.id, its.handler, its.state, children.first, children.n
  from examined
    cross join lateral (
      select handler, state from {{s}}.jobs where jobs.id = examined.id and state in ({FAILED}, {CANCELLED}) offset 0) as its
    cross join lateral (
      select min(child) as first, count(*) as n from (
        select child, link, on_failed from {{s}}.parents where parents.parent = examined.id limit {MAX_WAITING}) as links
      where link = {WAITS} and on_failed = {WAIT}
        and (select state from {{s}}.jobs as child_job where child_job.id = links.child) = {BLOCKED}) as children
  where children.n > 0 order by examined.id limit {MAX_STUCK}"""


def stuck(connection: Connection) -> list[dict[str, Any]]:
    return stuck_rows(connection.rows(HELD_KEYS), connection.rows(FAILED_PARENTS))
