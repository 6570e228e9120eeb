"""The order of jobs that have the same key, in SQLite: one of them holds the key until it has ended, and the others are blocked."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.stores.codes import BLOCKED, FAILED, SUCCEEDED
from supervisor.stores.sqlite.connection import Connection, packed

# A job waits for its key from the time on when it is due. While jobs wait for a key, some job holds it.
KEY_TABLES = (
    "create table key_holders(key text primary key, job_id int not null) without rowid",
    "create unique index held_by on key_holders(job_id)",
    "create table key_waiters(key text not null, job_id int not null, primary key(key, job_id)) without rowid",
)

HOLD = """
  insert or ignore into key_holders(key, job_id)
  select key, min(job_id) from extras where job_id in (select value from json_each(?1)) and key is not null group by key"""
WAIT = """
  insert into key_waiters(key, job_id)
  select key, job_id from extras where job_id in (select value from json_each(?1)) and key is not null
    and job_id != (select job_id from key_holders where key_holders.key = extras.key)
  on conflict do nothing"""
WAITING = """
  select json_group_array(extras.job_id) from json_each(?1) as it cross join extras on extras.job_id = it.value
    cross join key_waiters on key_waiters.key = extras.key and key_waiters.job_id = extras.job_id"""
WAITS_FOR_KEY = """
  select exists(select 1 from extras cross join key_waiters on key_waiters.key = extras.key and key_waiters.job_id = extras.job_id
    where extras.job_id = ?)"""

# A job that has failed, and is to hold its key then, keeps it until it is redriven or deleted.
KEEPS_ITS_KEY = f"""
  (select state from jobs where id = job_id) is {FAILED}
  and (select json_extract(text, '$.on_failure') from extras where extras.job_id = key_holders.job_id) is 'hold'"""
HELD = f"""
  select json_group_array(key) from key_holders
  where job_id in (select value from json_each(?1)) and (?2 or not ({KEEPS_ITS_KEY}))"""
LEAVE = """
  delete from key_waiters where (key, job_id) in (
    select key, job_id from extras where job_id in (select value from json_each(?)) and key is not null)"""
RELEASE = "delete from key_holders where key in (select value from json_each(?))"
PASS_ON = """
  insert into key_holders(key, job_id)
  select it.value, (select min(job_id) from key_waiters where key = it.value) as next
  from json_each(?) as it where next is not null"""
STOP_WAITING = "delete from key_waiters where (key, job_id) in (select key, job_id from key_holders where key in (select value from json_each(?)))"
HOLDERS = "select json_group_array(job_id) from key_holders where key in (select value from json_each(?))"

# Another program may have ended or deleted a holder by plain SQL.
LOST = f"""
  select json_group_array(distinct key) from (
    select key from key_waiters where not exists (select 1 from key_holders where key_holders.key = key_waiters.key)
    union all
    select key from key_holders where not exists (
      select 1 from jobs where id = job_id and (state < {SUCCEEDED} or ({KEEPS_ITS_KEY}))))"""

# The job that has the key of a blocked job, as [id, state, extras]: `key_holder` of stores.shown reads it.
KEY_HOLDER = f"""
  (select json_array(key_holders.job_id, holder.state, cast(its.text as text)) || ''
   from key_holders left join jobs as holder on holder.id = key_holders.job_id left join extras as its on its.job_id = holder.id
   where jobs.state = {BLOCKED} and key_holders.key = extras.key)"""


class Keys:
    """The holders of keys, and the jobs that wait for them in the order of their ids."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def acquire(self, ids: Sequence[int]) -> list[int]:
        """Give these due jobs their keys. Return those that have to wait."""
        batch = packed(ids)
        self._connection.run(HOLD, batch)
        self._connection.run(WAIT, batch)
        waiting: list[int] = self._connection.json(WAITING, batch)
        return waiting

    def waits(self, id: int) -> bool:
        return bool(self._connection.value(WAITS_FOR_KEY, id))

    def release(self, ids: Sequence[int], deleted: bool = False) -> list[int]:
        """Take the keys from these jobs, which have ended or are `deleted`. Return the jobs that have them now."""
        batch = packed(ids)
        self._connection.run(LEAVE, batch)
        return self._pass_on(self._connection.json(HELD, batch, deleted))

    def repair(self) -> list[int]:
        """Pass on the keys that no unfinished job holds. Return the jobs that have them now."""
        return self._pass_on(self._connection.json(LOST))

    def _pass_on(self, keys: Sequence[str]) -> list[int]:
        if not keys:
            return []
        batch = packed(keys)
        self._connection.run(RELEASE, batch)
        self._connection.run(PASS_ON, batch)
        self._connection.run(STOP_WAITING, batch)
        holders: list[int] = self._connection.json(HOLDERS, batch)
        return holders
