"""The expiry of jobs in SQLite: see `supervisor.stores.expiry`."""

from __future__ import annotations

from supervisor.jobs import ExpiredJob
from supervisor.stores.codes import CANCELLED, IN_FLIGHT
from supervisor.stores.expiry import expired_record
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.links import Links

EXPIRIES = "create table expiries(expires_at int, job_id int, primary key(expires_at, job_id)) without rowid"
FORGET_DELETED = """delete from expiries
        where expires_at = (select expires_at from extras where job_id = old.id) and job_id = old.id"""
ADD = "insert into expiries(expires_at, job_id) values (?, ?)"
FORGET = "delete from expiries where expires_at = (select expires_at from extras where job_id = ?1) and job_id = ?1"
NEXT = "select min(expires_at) from expiries"

PAST = Select(
    "expires_at, job_id",
    "from (select expires_at, job_id from expiries where expires_at <= ? order by expires_at, job_id limit ?)",
)
FORGET_UNTIL = "delete from expiries where (expires_at, job_id) <= (?, ?)"
UNSTARTED = Select(
    "jobs.id, handler, queue, tier, state, json_extract(it.value, '$[0]')",
    f"""from json_each(?) as it cross join jobs on jobs.id = json_extract(it.value, '$[1]')
      where state < {IN_FLIGHT} and retries = 0 and started_at is null
        and not exists (select 1 from snoozes where job_id = jobs.id)""",
)
CANCEL = f"""
  update jobs set state = {CANCELLED}, token = token + 1, finished_at = ? where id in (select value from json_each(?))"""

RECORD = "insert into attempts(job_id, record) values (?, ?)"


class Expiries:
    """All calls are made inside a transaction."""

    def __init__(self, connection: Connection, links: Links) -> None:
        self._connection, self._links = connection, links

    def add(self, id: int, expires_at: int) -> None:
        self._connection.run(ADD, expires_at, id)

    def forget(self, id: int) -> None:
        """Forget the expiry of a job, before its extras change."""
        self._connection.run(FORGET, id)

    def sweep(self, now: int, limit: int) -> tuple[tuple[ExpiredJob, ...], bool]:
        """Cancel the jobs that have expired, and forget the expiry of others. Return the jobs, and whether more are past."""
        past = self._connection.rows(PAST, now, limit)
        if not past:
            return (), False
        rows = self._connection.rows(UNSTARTED, packed(past))
        self._connection.run(FORGET_UNTIL, *past[-1])
        ids = [id for id, *_ in rows]
        if ids:
            self._links.groups.free_turns(ids)
            self._connection.run(CANCEL, now, packed(ids))
            self._connection.run_many(
                RECORD, [(id, packed(expired_record(expires_at, now))) for id, *_, expires_at in rows]
            )
        for _, _, queue, tier, state, _ in rows:
            self._connection.counts.add(state, queue, tier, -1)
            self._connection.counts.add(CANCELLED, queue, tier)
        self._links.ended(ids)
        return tuple(ExpiredJob(*row[:3]) for row in rows), len(past) == limit
