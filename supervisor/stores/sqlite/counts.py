"""The counts of jobs in SQLite: kept in a table, so that nobody has to count rows."""

from __future__ import annotations

from collections import Counter

from supervisor.stores.sqlite.connection import Connection, packed

ADD_COUNTS = """
  insert into counts(state, queue, tier, n)
  select json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
  from json_each(?) where true
  on conflict(state, queue, tier) do update set n = n + excluded.n"""


class Counts:
    """Collects the changes of a transaction, and writes them by one statement before its commit."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changes: Counter[tuple[int, str, int]] = Counter()
        connection.before_commit(self.write)
        connection.on_rollback(self._changes.clear)

    def add(self, state: int, queue: str, tier: int, n: int = 1) -> None:
        self._changes[state, queue, tier] += n

    def write(self, state: int | None = None) -> None:
        """Write the changes, as is needed before the counts are read; with `state`, only if they change a count of it."""
        if state is not None and not any(n for key, n in self._changes.items() if key[0] == state):
            return
        changes = [(*key, n) for key, n in self._changes.items() if n]
        self._changes.clear()
        if changes:
            self._connection.run(ADD_COUNTS, packed(changes))
