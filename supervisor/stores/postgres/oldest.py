"""Find the ready job that has waited longest in a PostgreSQL store."""

from __future__ import annotations

from supervisor.stores.codes import READY
from supervisor.stores.oldest import FIRST_JOBS, MAX_PRIORITIES, OldestReady
from supervisor.stores.postgres.connection import NOW, Connection

_READY_OF_LINE = f"state = {READY} and jobs.queue = lines.queue and jobs.tier = lines.tier"
# Steps from one priority to the next in the index, so that the cost does not depend on the number of jobs.
OLDEST_READY = f"""
  select queue, tier, {NOW} - found.due_at from (
    select queue, tier from {{s}}.counts
    where state = {READY} and queue not in (select queue from {{s}}.queues where paused)
    group by queue, tier having sum(n) > 0 order by sum(n) desc, queue, tier limit $1) as lines
  cross join lateral (
    with recursive steps(priority) as (
      (select priority from {{s}}.jobs where {_READY_OF_LINE} order by priority limit 1)
      union all
      select next.priority from steps cross join lateral (
        select priority from {{s}}.jobs where {_READY_OF_LINE} and jobs.priority > steps.priority
        order by jobs.priority limit 1) as next)
    select min(first.due_at) as due_at from (select priority from steps limit {MAX_PRIORITIES}) as its cross join lateral (
      select due_at from {{s}}.jobs where {_READY_OF_LINE} and jobs.priority = its.priority
      order by age, id limit {FIRST_JOBS}) as first) as found
  where found.due_at is not null"""


class Oldest:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def oldest_ready(self, limit: int) -> list[OldestReady]:
        with self._connection.snapshot():
            rows = self._connection.rows(OLDEST_READY, limit)
        return [OldestReady(queue, tier, max(0, age) / 1e6) for queue, tier, age in rows]
