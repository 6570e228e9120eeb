"""The snoozes of jobs in a SQLite store. Only jobs that have snoozed have a row."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.jobs import Lease
from supervisor.stores.codes import IN_FLIGHT
from supervisor.stores.sqlite.connection import Connection, Select, packed

FOUND = Select(
    "jobs.id, n",
    f"""from json_each(?) as it cross join jobs on jobs.id = json_extract(it.value, '$[0]')
      and jobs.token = json_extract(it.value, '$[1]') and jobs.state = {IN_FLIGHT}
      cross join snoozes on snoozes.job_id = jobs.id""",
)
ADD = """
  insert into snoozes(job_id, n, until) select id, 1, due_at from jobs where id in (select value from json_each(?))
  on conflict(job_id) do update set n = n + 1, until = excluded.until"""
FORGET = "delete from snoozes where job_id in (select value from json_each(?))"


class Snoozes:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def found(self, leases: Sequence[Lease]) -> dict[int, int]:
        with self._connection.snapshot():
            return dict(self._connection.rows(FOUND, packed([(lease.id, lease.token) for lease in leases])))

    def add(self, ids: Sequence[int]) -> None:
        """Count a snooze of these jobs, which are scheduled for its end now."""
        self._connection.run(ADD, packed(ids))

    def forget(self, ids: Sequence[int]) -> None:
        self._connection.run(FORGET, packed(ids))
