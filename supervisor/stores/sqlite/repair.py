"""Repair of a SQLite store whose rows other programs have changed by plain SQL."""

from __future__ import annotations

from supervisor.stores.codes import IN_FLIGHT, READY, SCHEDULED
from supervisor.stores.counts import repair_text
from supervisor.stores.sqlite.connection import ADD_COUNTS, Connection, Select, packed
from supervisor.stores.sqlite.links import Links
from supervisor.stores.sqlite.unique import UniqueKeys

# Ready jobs are compared by queue, as claims need it, and jobs in flight, since an outcome is counted in the queue that its job was
# claimed from. Scheduled jobs are compared as a whole. Each part reads only the index of its state.
ANY_WRONG = f"""
  select exists(
      select 1 from (
        select state, queue, tier, n from counts where state in ({READY}, {IN_FLIGHT})
        union all select {READY}, queue, tier, -count(*) from jobs where state = {READY} group by queue, tier
        union all select {IN_FLIGHT}, queue, tier, -count(*) from jobs where state = {IN_FLIGHT} group by queue, tier)
      group by state, queue, tier having sum(n) != 0)
    or (select coalesce(sum(n), 0) from counts where state = {SCHEDULED})
      != (select count(*) from jobs where state = {SCHEDULED})"""
DIFFERENCES = Select(
    "state, queue, tier, n",
    """from (
      select state, queue, tier, sum(n) as n from (
        select state, queue, tier, -n as n from counts
        union all select state, queue, tier, count(*) from jobs group by state, queue, tier)
      group by state, queue, tier having sum(n) != 0)""",
)
EXPIRE_UNLEASED = f"""
  update jobs set owner = coalesce(owner, 0), lease_until = coalesce(lease_until, 0)
  where state = {IN_FLIGHT} and (owner is null or lease_until is null)"""


class Repair:
    def __init__(self, connection: Connection, links: Links) -> None:
        self._connection, self._links, self._unique = connection, links, UniqueKeys(connection)

    def repair(self) -> str:
        """Correct the counts, give an expired lease to each job in flight that has none, and let jobs go on that wait in vain."""
        with self._connection.transaction():
            self._connection.counts.write()
            unleased = self._connection.run(EXPIRE_UNLEASED)
            self._unique.repair()
            wrong = self._connection.rows(DIFFERENCES) if self._connection.value(ANY_WRONG) else []
            if wrong:
                self._connection.run(ADD_COUNTS, packed(wrong))
            return repair_text({queue for _, queue, _, _ in wrong}, self._links.repair(), unleased)
