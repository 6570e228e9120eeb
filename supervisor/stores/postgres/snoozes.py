"""The snoozes of jobs in a PostgreSQL store. Only jobs that have snoozed have a row."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.stores.postgres.connection import Connection, array

FOUND = "select job_id, n from {s}.snoozes where job_id = any($1::bigint[])"
ADD = """
  insert into {s}.snoozes as old(job_id, n, until)
  select id, 1, due_at from {s}.jobs where id = any($1::bigint[]) order by id
  on conflict(job_id) do update set n = old.n + 1, until = excluded.until"""
FORGET = "delete from {s}.snoozes where job_id = any($1::bigint[])"


class Snoozes:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def found(self, ids: Sequence[int]) -> dict[int, int]:
        with self._connection.snapshot():
            return dict(self._connection.rows(FOUND, array(ids)))

    def add(self, ids: Sequence[int]) -> None:
        """Count a snooze of these jobs, which are scheduled for its end now."""
        self._connection.later(ADD, array(ids))

    def forget(self, ids: Sequence[int]) -> None:
        self._connection.later(FORGET, array(ids))
