"""Jobs that wait for other jobs in PostgreSQL: they are blocked until those have ended. Each change of a job's state goes on from here."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.stores.postgres.connection import Connection, array
from supervisor.stores.postgres.keys import LOST

DUE = "select {s}.acquire_keys($1::bigint[])"
ENDED = "select {s}.release_keys($1::bigint[], $2)"
PASS_ON = "select {s}.pass_on_keys($1::text[])"


class Links:
    """The relations between jobs. All calls are made inside the transaction that changes the jobs, whose rows are locked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._made_ready: set[str] = set()
        connection.on_rollback(self._made_ready.clear)

    def newly_ready(self) -> frozenset[str]:
        """Return the queues in which blocked jobs were made ready since the last call."""
        if not self._made_ready:
            return frozenset()
        found = frozenset(self._made_ready)
        self._made_ready.clear()
        return found

    def due(self, ids: Sequence[int]) -> None:
        """Block those of these ready jobs whose key another job holds."""
        if ids:
            self._connection.later(DUE, array(ids))

    def ended(self, ids: Sequence[int], deleted: bool = False) -> None:
        """Let the jobs go on that have waited for these, which have ended, or are about to be `deleted`."""
        if ids:
            self._made_ready.update(self._connection.column(ENDED, array(ids), deleted))

    def repair(self) -> int:
        """Let jobs go on that wait in vain, since other programs have changed jobs by plain SQL. Return for how many keys."""
        lost = self._connection.column(LOST)
        if lost:
            self._made_ready.update(self._connection.column(PASS_ON, lost))
        return len(lost)
