"""Jobs that wait for other jobs in SQLite: they are blocked until those have ended. Each change of a job's state goes on from here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supervisor.stores.codes import BLOCKED, READY, SCHEDULED
from supervisor.stores.extras import Extras
from supervisor.stores.newly_ready import NewlyReady
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.groups import Groups
from supervisor.stores.sqlite.keys import Keys
from supervisor.stores.sqlite.parent_results import give_results
from supervisor.stores.sqlite.workflows import Workflows
from supervisor.stores.workflows import WAITS

KEYS_IN_USE, PARENTS_IN_USE = 1, 2
IN_USE = f"""
  select {KEYS_IN_USE} * exists(select 1 from key_holders)
    + {PARENTS_IN_USE} * exists(select 1 from parents where link = {WAITS})"""
KEYS_OR_TURNS_IN_USE = "select exists(select 1 from extras) or exists(select 1 from turns)"
PLACES = Select(
    "queue, tier, n",
    """from (
      select queue, tier, count(*) as n from json_each(?) as it cross join jobs on jobs.id = it.value and jobs.state = ?
      group by queue, tier)""",
)
FOR_LATER = """
  select json_group_array(it.value) from json_each(?2) as it where (select due_at from jobs where id = it.value) > ?1"""
DUE_SINCE = "update jobs set due_at = ?1 where id in (select value from json_each(?2)) and due_at < ?1"
SET_STATE = "update jobs set state = ?1 where id in (select value from json_each(?2)) and state = ?3"


class Links:
    """The relations between jobs. All calls are made inside the transaction that changes the jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._keys, self._workflows = connection, Keys(connection), Workflows(connection)
        self.groups = Groups(connection)
        self._newly_ready = NewlyReady()
        self.newly_ready = self._newly_ready.take
        connection.on_rollback(self._newly_ready.clear)

    def due(self, ids: Iterable[int]) -> None:
        """Block those of these ready jobs whose key another job holds, and give the others a turn."""
        if self._connection.value(KEYS_OR_TURNS_IN_USE):
            ready = [*ids]
            self.acquire(ready)
            self.groups.take_turns(ready)

    def acquire(self, ids: Sequence[int]) -> None:
        """Block those of these ready jobs whose key another job holds."""
        if waiting := self._keys.acquire(ids):
            self._move(waiting, READY, BLOCKED)

    def linked(self, child: int, extras: Extras) -> None:
        """Let this job, which is new or replaced, and blocked, go on once its parents have ended. Raises NoSuchParent and
        ParentsInCircle."""
        self._go_on(self._workflows.link(child, extras))

    def unlink(self, id: int, *, keep_key: bool) -> bool:
        """Let this job, which is replaced, wait for none of its parents any more. Take its key from it, unless `keep_key`: another one with
        the key goes on. Return whether it waits for its key."""
        self._workflows.unlink(id)
        if not keep_key:
            self._resume(self._keys.release([id], deleted=True))
        return self._keys.waits(id)

    def run_again(self, ids: Sequence[int]) -> None:
        """Block those of these jobs, which are ready again, that have to wait, and the jobs that wait for these again."""
        waiting, free = self._workflows.run_again(ids)
        if waiting:
            self._move(waiting, READY, BLOCKED)
        ready = [id for id in ids if id not in set(waiting)]
        give_results(self._connection, ready)
        self.due(ready)
        self._go_on(free)

    def ended(self, ids: Iterable[int], deleted: bool = False) -> None:
        """Let the jobs go on that have waited for these, which have ended, or are about to be `deleted`."""
        in_use = self._connection.value(IN_USE)
        if not in_use:
            return
        ended = [*ids]
        if in_use & KEYS_IN_USE:
            self._resume(self._keys.release(ended, deleted))
        if in_use & PARENTS_IN_USE:
            self._go_on(self._workflows.ended(ended, deleted))

    def repair(self) -> frozenset[str]:
        """Let jobs go on that wait in vain, since other programs have changed jobs by plain SQL. Return their queues."""
        return self._resume(self._keys.repair()) | self._go_on(self._workflows.repair())

    def _go_on(self, ids: Sequence[int]) -> frozenset[str]:
        """Let these jobs wait for their parents no longer: they are due now or later, or wait for their keys. Return the queues of those
        that are ready."""
        if not ids:
            return frozenset()
        give_results(self._connection, ids)
        now = self._connection.now()
        later = set(self._connection.json(FOR_LATER, now, packed(ids)))
        due = [id for id in ids if id not in later]
        self._newly_ready.add(self._move(list(later), BLOCKED, SCHEDULED))
        self._connection.run(DUE_SINCE, now, packed(due))
        waiting = set(self._keys.acquire(due))
        return self._resume([id for id in due if id not in waiting])

    def _resume(self, ids: Sequence[int]) -> frozenset[str]:
        """Make these blocked jobs ready. Return their queues."""
        if not ids:
            return frozenset()
        queues = self._move(ids, BLOCKED, READY)
        self.groups.take_turns(ids)
        self._newly_ready.add(queues)
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
