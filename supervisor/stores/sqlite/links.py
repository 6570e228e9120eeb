"""Jobs that wait for other jobs in SQLite: they are blocked until those have ended. Each change of a job's state goes on from here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supervisor.stores.codes import BLOCKED, READY
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.groups import Groups
from supervisor.stores.sqlite.keys import Keys

PLACES = Select(
    "queue, tier, n",
    """from (
      select queue, tier, count(*) as n from json_each(?) as it cross join jobs on jobs.id = it.value and jobs.state = ?
      group by queue, tier)""",
)
SET_STATE = "update jobs set state = ?1 where id in (select value from json_each(?2)) and state = ?3"


class Links:
    """The relations between jobs. All calls are made inside the transaction that changes the jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._keys, self.groups = connection, Keys(connection), Groups(connection)
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
        """Block those of these ready jobs whose key another job holds, and give the others a turn."""
        if not self._connection.value("select exists(select 1 from extras) or exists(select 1 from turns)"):
            return
        self.acquire(ids)
        self.groups.take_turns(ids)

    def acquire(self, ids: Sequence[int]) -> None:
        """Block those of these ready jobs whose key another job holds."""
        if waiting := self._keys.acquire(ids):
            self._move(waiting, READY, BLOCKED)

    def ended(self, ids: Iterable[int], deleted: bool = False) -> None:
        """Let the jobs go on that have waited for these, which have ended, or are about to be `deleted`."""
        if self._keys.in_use():
            self._resume(self._keys.release([*ids], deleted))

    def repair(self) -> frozenset[str]:
        """Let jobs go on that wait in vain, since other programs have changed jobs by plain SQL. Return their queues."""
        return self._resume(self._keys.repair())

    def _resume(self, ids: Sequence[int]) -> frozenset[str]:
        """Make these blocked jobs ready. Return their queues."""
        if not ids:
            return frozenset()
        queues = self._move(ids, BLOCKED, READY)
        if self.groups.in_use():
            self.groups.take_turns(ids)
        self._made_ready |= queues
        return queues

    def _move(self, ids: Sequence[int], before: int, state: int) -> frozenset[str]:
        """Change the state of those of these jobs that are in the state `before`. Return their queues."""
        batch = packed(ids)
        places = self._connection.rows(PLACES, batch, before)
        self._connection.run(SET_STATE, state, batch, before)
        for queue, tier, n in places:
            self._connection.counts.add(before, queue, tier, -n)
            self._connection.counts.add(state, queue, tier, n)
        return frozenset(queue for queue, _, _ in places)
