"""Repair of a PostgreSQL store whose rows other programs have changed by plain SQL."""

from __future__ import annotations

from supervisor.stores.codes import IN_FLIGHT, READY, SCHEDULED
from supervisor.stores.counts import repair_text
from supervisor.stores.postgres.connection import Connection
from supervisor.stores.postgres.counts import Counts
from supervisor.stores.postgres.links import Links
from supervisor.stores.postgres.unique import UniqueKeys

# Ready jobs are compared by queue, as claims need it, and jobs in flight, since an outcome is counted in the queue that its job was
# claimed from. Scheduled jobs are compared as a whole. Each part reads only the index of its state.
# One statement sees one moment of both tables, which every transaction changes together.
ANY_WRONG = f"""
  select exists (
      select from (
        select state, queue, tier, n from {{s}}.counts where state in ({READY}, {IN_FLIGHT})
        union all select {READY}, queue, tier, -count(*) from {{s}}.jobs where state = {READY} group by queue, tier
        union all select {IN_FLIGHT}, queue, tier, -count(*) from {{s}}.jobs where state = {IN_FLIGHT} group by queue, tier) as it
      group by state, queue, tier having sum(n) != 0)
    or (select coalesce(sum(n), 0) from {{s}}.counts where state = {SCHEDULED})
      != (select count(*) from {{s}}.jobs where state = {SCHEDULED})"""
# Of two sessions that repair at once, one leaves it to the other.
TRY_LOCK = "select pg_try_advisory_xact_lock(hashtextextended($1, 0))"
CORRECT = """
  insert into {s}.counts(state, queue, tier, n)
  select state, queue, tier, sum(n) from (
    select state, queue, tier, -n as n from {s}.counts
    union all select state, queue, tier, count(*) from {s}.jobs group by state, queue, tier) as it
  group by state, queue, tier having sum(n) != 0
  returning queue"""


class Repair:
    def __init__(self, connection: Connection, counts: Counts, links: Links) -> None:
        self._connection, self._counts, self._links = connection, counts, links
        self._unique = UniqueKeys(connection)

    def repair(self) -> str:
        with self._connection.transaction():
            self._counts.write()
            self._unique.repair()
            blocked, wrong = self._links.repair(), set[str]()
            if self._connection.value(ANY_WRONG) and self._connection.value(
                TRY_LOCK, f"{self._connection.names.schema}.counts"
            ):
                wrong = set(self._connection.column(CORRECT))
            return repair_text(wrong, blocked)
