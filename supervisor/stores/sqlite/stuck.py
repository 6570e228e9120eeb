"""The blocked jobs in SQLite that wait for a job that has ended without success: see `supervisor.stores.stuck`."""

from __future__ import annotations

from typing import Any

from supervisor.stores.codes import BLOCKED, CANCELLED, FAILED, SUCCEEDED
from supervisor.stores.sqlite.connection import Connection, Select
from supervisor.stores.sqlite.keys import KEEPS_ITS_KEY
from supervisor.stores.stuck import MAX_LOOKED_AT, MAX_STUCK, MAX_WAITING, stuck_rows
from supervisor.stores.workflows import WAIT, WAITS


def _last(state: int) -> str:
    return f"""select id from (
          select id from jobs where state = {state} and state >= {SUCCEEDED} order by finished_at desc limit {MAX_LOOKED_AT})"""


_OLDEST_BLOCKED = f"(select id from jobs where state = {BLOCKED} order by id limit {MAX_LOOKED_AT}) as it"
_EXAMINED = f"""
      with examined(id) as (
        {_last(FAILED)} union {_last(CANCELLED)}
        union select parent from (
          select parents.parent from {_OLDEST_BLOCKED} cross join parents on parents.child = it.id
          where link = {WAITS} limit {2 * MAX_LOOKED_AT})
        union select key_holders.job_id from {_OLDEST_BLOCKED} cross join extras on extras.job_id = it.id
          cross join key_holders on key_holders.key = extras.key)"""
HELD_KEYS = Select(
    "id, handler, state, key, waiting",
    f"""from ({_EXAMINED}
      select examined.id, handler, jobs.state, key_holders.key, (
        select count(*) from (
          select 1 from key_waiters where key_waiters.key = key_holders.key limit {MAX_WAITING})) as waiting
      from examined cross join key_holders on key_holders.job_id = examined.id cross join jobs on jobs.id = examined.id
      where {KEEPS_ITS_KEY} and exists (select 1 from key_waiters where key_waiters.key = key_holders.key)
      order by examined.id limit {MAX_STUCK})""",
)
# Few links of each parent are read: it may have very many children that do not wait for it any more.
_WAITING = f"""
        from (select child, link, on_failed from parents where parents.parent = examined.id limit {MAX_WAITING}) as its
        where link = {WAITS} and on_failed = {WAIT} and (select state from jobs as child_job where child_job.id = its.child) = {BLOCKED}"""
FAILED_PARENTS = Select(
    "id, handler, state, child, waiting",
    f"""from ({_EXAMINED}
      select examined.id, handler, jobs.state, (select min(child) {_WAITING}) as child, (select count(*) {_WAITING}) as waiting
      from examined cross join jobs on jobs.id = examined.id
      where jobs.state in ({FAILED}, {CANCELLED}) and waiting
      order by examined.id limit {MAX_STUCK})""",
)


def stuck(connection: Connection) -> list[dict[str, Any]]:
    return stuck_rows(connection.rows(HELD_KEYS), connection.rows(FAILED_PARENTS))
