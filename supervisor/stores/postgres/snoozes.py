"""The snoozes of jobs in a PostgreSQL store. Only jobs that have snoozed have a row."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.jobs import Lease
from supervisor.stores.codes import IN_FLIGHT
from supervisor.stores.postgres.connection import Connection, array

FOUND = f"""
  select jobs.id, n from unnest($1::bigint[], $2::bigint[]) as it(id, token)
  join {{s}}.jobs on jobs.id = it.id and jobs.token = it.token and jobs.state + 0 = {IN_FLIGHT}
  join {{s}}.snoozes on snoozes.job_id = jobs.id"""
ADD = """
  insert into {s}.snoozes as old(job_id, n, until)
  select id, 1, due_at from {s}.jobs where id = any($1::bigint[]) order by id
  on conflict(job_id) do update set n = old.n + 1, until = excluded.until"""
FORGET = "delete from {s}.snoozes where job_id = any($1::bigint[])"


class Snoozes:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def found(self, leases: Sequence[Lease]) -> dict[int, int]:
        ids, tokens = array(lease.id for lease in leases), array(lease.token for lease in leases)
        with self._connection.snapshot():
            return dict(self._connection.rows(FOUND, ids, tokens))

    def add(self, ids: Sequence[int]) -> None:
        """Count a snooze of these jobs, which are scheduled for its end now."""
        self._connection.later(ADD, array(ids))

    def forget(self, ids: Sequence[int]) -> None:
        self._connection.later(FORGET, array(ids))
