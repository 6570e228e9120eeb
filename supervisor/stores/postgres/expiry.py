"""The expiry of jobs in PostgreSQL: see `supervisor.stores.expiry`."""

from __future__ import annotations

from collections import Counter

from supervisor.jobs import ExpiredJob
from supervisor.stores.codes import CANCELLED, IN_FLIGHT, READY
from supervisor.stores.expiry import expired_record
from supervisor.stores.postgres.connection import NOW, Connection, Row, packed
from supervisor.stores.postgres.counts import Counts
from supervisor.stores.postgres.links import Links

EXPIRIES = "create table {s}.expiries(expires_at bigint, job_id bigint, primary key(expires_at, job_id))"
FORGET_DELETED = """delete from {s}.expiries using {s}.extras
          where extras.job_id = any(ids) and expiries.expires_at = extras.expires_at and expiries.job_id = extras.job_id"""
NEXT = f"(select min(expires_at) - {NOW} from {{s}}.expiries)"

_UNSTARTED = f"""state < {IN_FLIGHT} and retries = 0 and started_at is null
  and not exists (select from {{s}}.snoozes where snoozes.job_id = jobs.id)"""
# A job that another session is changing keeps its expiry: the next look finds out whether it was claimed.
SWEEP = f"""
  with past as materialized (
    select expires_at, job_id from {{s}}.expiries where expires_at <= {NOW}
    order by expires_at, job_id limit $1 for update skip locked),
  unstarted as materialized (
    select id, expires_at, state from past join {{s}}.jobs on id = job_id where {_UNSTARTED}
    order by id for no key update of jobs skip locked),
  cancelled as (
    update {{s}}.jobs set state = {CANCELLED}, token = token + 1, finished_at = {NOW}
    from unstarted where jobs.id = unstarted.id
    returning jobs.id, handler, queue, tier, unstarted.state, expires_at, finished_at, linked),
  forgotten as (
    delete from {{s}}.expiries using past
    where expiries.expires_at = past.expires_at and expiries.job_id = past.job_id and (
      past.job_id in (select id from unstarted)
      or not exists (select from {{s}}.jobs where id = past.job_id and {_UNSTARTED}))
    returning expiries.job_id)
  select *, (select count(*) from past), (select count(*) from forgotten) from cancelled
  union all
  select null, null, null, null, null, null, null, null, (select count(*) from past), (select count(*) from forgotten)
  where not exists (select from cancelled)"""
RECORD = """
  insert into {s}.attempts(job_id, at, record)
  select job_id, at, record from json_to_recordset($1::json) as it(job_id bigint, at bigint, record text)"""


class Expiries:
    """All calls are made inside a transaction."""

    def __init__(self, connection: Connection, counts: Counts, links: Links) -> None:
        self._connection, self._counts, self._links = connection, counts, links

    def sweep(self, limit: int) -> tuple[tuple[ExpiredJob, ...], bool]:
        """Cancel the jobs that have expired, and forget the expiry of others. Return the jobs, and whether more are past."""
        rows = self._connection.rows(SWEEP, limit)
        *_, past, done = rows[0]
        rows = [row for row in rows if row[0] is not None]
        if rows:
            self._record(rows)
        return tuple(ExpiredJob(*row[:3]) for row in rows), past == limit and done > 0

    def _record(self, rows: list[Row]) -> None:
        for (queue, tier, state), n in Counter(row[2:5] for row in rows).items():
            self._counts.add(state, queue, tier, -n)
            self._counts.add(CANCELLED, queue, tier, n)
        records = [
            {"job_id": id, "at": now, "record": packed(expired_record(expires_at, now))}
            for id, _, _, _, _, expires_at, now, *_ in rows
        ]
        self._connection.later(RECORD, packed(records))
        self._links.groups.free_turns([row[0] for row in rows if row[4] == READY and not row[3]], had=True)
        self._links.ended([row[0] for row in rows if row[7]])
