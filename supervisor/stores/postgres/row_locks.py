"""Rows of a PostgreSQL store that another session has locked: for example, a person has left a transaction open."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from supervisor.stores.postgres.connection import Connection, array


class Lockable(NamedTuple):
    """The statements that select, by ids, the rows of a table that exist, and lock those that are free."""

    existing: str
    lock_free: str


JOBS = Lockable(
    "select id from {s}.jobs where id = any($1::bigint[])",
    "select id from {s}.jobs where id = any($1::bigint[]) order by id for no key update skip locked",
)
DEAD_LETTERS = Lockable(
    "select job_id from {s}.dead_letters where job_id = any($1::bigint[])",
    """select job_id from {s}.dead_letters where job_id = any($1::bigint[]) order by job_id
      for no key update skip locked""",
)
SNOOZES = Lockable(
    "select job_id from {s}.snoozes where job_id = any($1::bigint[])",
    "select job_id from {s}.snoozes where job_id = any($1::bigint[]) order by job_id for no key update skip locked",
)
SUPERVISORS = Lockable(
    "select id from {s}.supervisors where id = any($1::bigint[])",
    "select id from {s}.supervisors where id = any($1::bigint[]) order by id for no key update skip locked",
)
LOCKED_JOBS = """
  select id from {s}.jobs where id = any($1::bigint[])
    and id <> all(array(select id from {s}.jobs where id = any($1::bigint[]) for share skip locked))"""


class RowLocks:
    """The store's mode for locked rows. The first call that meets one waits for it, as long as a call may, and fails. For some time
    after that the store skips locked rows: each batch first locks the rows that are free, and leaves out the others. If another
    session has locked a whole table, this does not help: the repeated call fails as the first did."""

    def __init__(self, connection: Connection, skip_locked_seconds: float) -> None:
        self._connection, self._seconds = connection, skip_locked_seconds

    @property
    def skips_locked(self) -> bool:
        met_at = self._connection.session.lock_met_at
        return met_at is not None and time.monotonic() < met_at + self._seconds

    def to_skip(self, table: Lockable, ids: Collection[int]) -> set[int]:
        """Lock the free rows for this transaction, and return the ids of the others. Do nothing unless `skips_locked`."""
        if not ids or not self.skips_locked:
            return set()
        locked = self.locked(table, ids)
        if locked:
            self._connection.session.lock_met_at = time.monotonic()
        return locked

    def locked(self, table: Lockable, ids: Collection[int]) -> set[int]:
        """Return the ids of rows that other sessions have locked, and lock the rest. It waits for no lock."""
        missing = set(ids).difference(self._connection.column(table.lock_free, array(ids)))
        return set(self._connection.column(table.existing, array(missing))) if missing else missing

    def jobs_locked_by_others(self, ids: Collection[int]) -> set[int]:
        """Return the jobs that other sessions have locked to change them; for a few ids. Two sessions that call this at the same
        moment don't find each other's locks. These locks are released at once: this transaction may be long, and the owner of a
        lease needs the row."""
        if not ids:
            return set()
        self._connection.later("savepoint before_locks")
        locked = set(self._connection.column(LOCKED_JOBS, array(ids)))
        self._connection.later("rollback to savepoint before_locks")
        self._connection.run("release savepoint before_locks")
        return locked
