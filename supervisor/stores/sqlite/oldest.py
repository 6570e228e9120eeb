"""Find the ready job that has waited longest in a SQLite store."""

from __future__ import annotations

from supervisor.stores.codes import READY
from supervisor.stores.oldest import FIRST_JOBS, MAX_PRIORITIES, OldestReady
from supervisor.stores.sqlite.connection import Connection, Select

# Steps from one priority to the next in the index, so that the cost does not depend on the number of jobs.
OLDEST_READY = Select(
    "queue, tier, due_at",
    f"""from (
      select queue, tier, (
        with recursive steps(priority) as (
          select min(priority) from jobs where state = {READY} and queue = lines.queue and tier = lines.tier
          union all
          select (
            select min(priority) from jobs
            where state = {READY} and queue = lines.queue and tier = lines.tier and priority > steps.priority)
          from steps where priority is not null
          limit {MAX_PRIORITIES})
        select min(first.due_at) from (
          select (
            select min(due_at) from (
              select due_at from jobs
              where state = {READY} and queue = lines.queue and tier = lines.tier and priority = steps.priority
              order by age limit {FIRST_JOBS})) as due_at
          from steps where priority is not null) as first) as due_at
      from (
        select queue, tier from counts
        where state = {READY} and n > 0 and queue not in (select queue from queues where paused)
        order by n desc, queue, tier limit ?) as lines)""",
)


class Oldest:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def oldest_ready(self, limit: int) -> list[OldestReady]:
        with self._connection.snapshot():
            now = self._connection.now()
            rows = self._connection.rows(OLDEST_READY, limit)
        found = [row for row in rows if row[-1] is not None]  # a count may be wrong for a while
        return [OldestReady(queue, tier, max(0, now - due_at) / 1e6) for queue, tier, due_at in found]
