"""The counts of jobs in PostgreSQL. They are sums of rows that are only added, so that no transaction waits for another."""

from __future__ import annotations

from collections import Counter

from supervisor.stores.codes import CODES, READY
from supervisor.stores.postgres.connection import Connection, packed

ADD_COUNTS = """
  insert into {s}.counts(state, queue, tier, n)
  select * from json_to_recordset($1::json) as it(state smallint, queue text, tier smallint, n bigint)"""
# It takes up to $3 rows of ready jobs in the queues behind $1 and up to $2, and as many others of the same queues. It leaves rows that
# another session has locked, so two may fold at once and neither waits.
FOLD = f"""
  with ready as materialized (
    select ctid, queue from {{s}}.counts where state = {READY} and queue > $1 and queue <= $2
    order by queue limit $3 for update skip locked),
  others as materialized (
    select ctid from {{s}}.counts
    where state = any(array{[code for code in CODES.values() if code != READY]})
      and queue > $1 and queue <= (select max(queue) from ready) limit $3 for update skip locked),
  folded as materialized (
    delete from {{s}}.counts where ctid = any(array(select ctid from ready union all select ctid from others))
    returning state, queue, tier, n)
  insert into {{s}}.counts(state, queue, tier, n)
  select state, queue, tier, sum(n) from folded group by state, queue, tier having sum(n) != 0"""

LAST_QUEUE = "\U0010ffff"
MAX_UNFOLDED = 10
FOLDED_FROM = 100
"""Rows are folded if there are so many more than MAX_UNFOLDED times the needed ones."""
_FOLDED_AT_ONCE = 20_000


class Counts:
    """Collects the changes of a transaction, and writes them by one statement with its commit."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changes: Counter[tuple[int, str, int]] = Counter()
        connection.before_commit(self.write)
        connection.on_rollback(self._changes.clear)

    def add(self, state: int, queue: str, tier: int, n: int = 1) -> None:
        self._changes[state, queue, tier] += n

    def write(self) -> None:
        """Write the changes, as is needed before the counts are read."""
        changes = [
            {"state": state, "queue": queue, "tier": tier, "n": n}
            for (state, queue, tier), n in self._changes.items()
            if n
        ]
        self._changes.clear()
        if changes:
            self._connection.later(ADD_COUNTS, packed(changes))

    def fold(self, behind: str, last: str, rows: int, needed: int) -> None:
        """Replace many rows by few with the same sums, in the queues behind one and up to another, if there are many more `rows` of
        ready jobs than are `needed`."""
        if rows > FOLDED_FROM + MAX_UNFOLDED * needed:
            self._connection.later(FOLD, behind, last, _FOLDED_AT_ONCE)
