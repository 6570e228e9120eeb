"""Unique keys in SQLite: see `supervisor.stores.unique`."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.errors import JobExists, StoreError
from supervisor.stores.codes import SUCCEEDED
from supervisor.stores.extras import ExistingId, Extras, extras_of
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.transfer import closed_message
from supervisor.stores.unique import held_by, hold_of

UNIQUE_TABLES = (
    "create table unique_jobs(unique_key text primary key, job_id int not null, below int not null, until int) without rowid",
    "create index unique_until on unique_jobs(until) where until is not null",
)
# For the trigger that runs after a job is deleted. A key that is taken for a time stays so.
FORGET_DELETED = """delete from unique_jobs where job_id = old.id and until is null and unique_key = (
        select iif(json_valid(text), json_extract(text, '$.unique'), null) from extras where job_id = old.id)"""

# The time ?5 is now.
HOLDS = """coalesce(unique_jobs.until > ?5,
    (select state from jobs where jobs.id = unique_jobs.job_id) < unique_jobs.below, false)"""
TAKE = f"""
  insert into unique_jobs(unique_key, job_id, below, until) values (?1, ?2, ?3, ?4)
  on conflict(unique_key) do update set job_id = ?2, below = ?3, until = ?4 where not {HOLDS}"""
HOLDER = "select job_id from unique_jobs where unique_key = ?"
GIVE = "insert or replace into unique_jobs(unique_key, job_id, below, until) values (?, ?, ?, ?)"
KEY_OF_A_TIME = "select unique_key from unique_jobs where job_id = ? and until > ? limit 1"

HOLDERS = Select(
    "unique_key, job_id",
    f"from json_each(?1) as it cross join unique_jobs on unique_key = it.value where {HOLDS.replace('?5', '?2')}",
)

WITH_KEYS = Select(
    "job_id, cast(text as text)",
    "from json_each(?) as it cross join extras on extras.job_id = it.value order by it.key",
)
UNFINISHED = f"""
  select job_id from unique_jobs where unique_key = ?1 and job_id != ?2 and {HOLDS.replace("?5", "?3")}
    and (select state from jobs where jobs.id = unique_jobs.job_id) < {SUCCEEDED}"""
PRUNE = """
  delete from unique_jobs where unique_key in (
    select unique_key from unique_jobs where until is not null and until <= ? order by until limit ?)"""
FORGET_LOST = """
  delete from unique_jobs where until is null and not exists (select 1 from jobs where jobs.id = unique_jobs.job_id)"""


def refuse_if_closed(connection: Connection) -> None:
    """Raise StoreError if the jobs of this store were transferred: its triggers refuse only what inserts or changes a job."""
    if connection.value("select 1 from sqlite_master where name = 'transfer_out'"):
        raise StoreError(closed_message(connection.value("select target from transfer_out").decode()))


class UniqueKeys:
    """All calls are made inside the transaction that changes the jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def take(self, extras: Extras, id: int, now: int) -> ExistingId | None:
        """Give the key to the job that is to have this `id`. If another job has the key, return that one. Raises JobExists."""
        hold = hold_of(extras, now)
        if self._connection.run(TAKE, extras.unique, id, *hold, now):
            return None
        refuse_if_closed(self._connection)
        existing = ExistingId(self._connection.value(HOLDER, extras.unique))
        if extras.on_conflict == "reject":
            raise JobExists(extras.unique or "", existing)
        return existing

    def give(self, extras: Extras, id: int, now: int) -> None:
        """Give the key to this job, whoever has it."""
        self._connection.run(GIVE, extras.unique, id, *hold_of(extras, now))

    def holders(self, keys: Sequence[str], now: int) -> dict[str, int]:
        """Return the jobs that have some of these keys."""
        found = dict(self._connection.rows(HOLDERS, packed(keys), now))
        if found:
            refuse_if_closed(self._connection)
        return found

    def give_all(self, jobs: Sequence[tuple[int, Extras]], now: int) -> None:
        self._connection.run_many(GIVE, [(extras.unique, id, *hold_of(extras, now)) for id, extras in jobs])

    def retake(self, ids: Sequence[int], now: int) -> dict[int, str]:
        """Give the keys to these ended jobs, which are to run again. Return why some may not."""
        refused: dict[int, str] = {}
        taken: dict[str, int] = {}
        for id, text in self._connection.rows(WITH_KEYS, packed(ids)):
            extras = extras_of(text)
            if (key := extras.unique) is None:
                continue
            other = taken.get(key) or self._connection.value(UNFINISHED, key, id, now)
            if other is not None:
                refused[id] = held_by(key, other)
                continue
            taken[key] = id
            if not isinstance(extras.unique_while, int):
                self.give(extras, id, now)
        return refused

    def key_of(self, id: int) -> str | None:
        """Return the key that this job has for a time, if it has one. It looks at all keys."""
        key = self._connection.value(KEY_OF_A_TIME, id, self._connection.now())
        return None if key is None else str(key.decode())

    def prune(self, now: int, limit: int) -> None:
        """Forget keys whose time is over."""
        self._connection.run(PRUNE, now, limit)

    def repair(self) -> None:
        """Forget keys of jobs that do not exist."""
        self._connection.run(FORGET_LOST)
