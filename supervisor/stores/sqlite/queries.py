"""Queries of people, programs and --drain to a SQLite store. Nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from supervisor.events import MAX_COUNTED
from supervisor.jobs import JobState
from supervisor.stores.codes import (
    CODES,
    DEAD_LETTER_CODES,
    DEAD_LETTERS,
    IN_FLIGHT,
    LEFT,
    PENDING,
    READY,
    SCHEDULED,
    STATES,
    SUCCEEDED,
    WITHDRAWN,
)
from supervisor.stores.counts import queue_rows, running_jobs
from supervisor.stores.records import LAST_TIME, Shown, iso, job_dict, microseconds, own_max_retries
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.owner_lock import OwnerLock
from supervisor.stores.sqlite.ownership import Ownership
from supervisor.stores.sqlite.queue import PAUSED, Policies

SHOWN = Select(
    """jobs.id, handler, coalesce(cast(payload as text), ''), queue, priority, jobs.state, retries, policy, options,
      jobs.due_at, created_at, started_at, finished_at, cast(result as text), cast(headers as text), dead_letters.state""",
    """from json_each(?) as it cross join jobs on jobs.id = it.value
      left join dead_letters on dead_letters.job_id = jobs.id""",
)
ATTEMPTS = Select(
    "job_id, json(record)",
    "from json_each(?) as it cross join attempts on attempts.job_id = it.value",
)

UNFINISHED = Select("queue, state, n", f"from counts where state < {SUCCEEDED}")
DUE_BY = f"""
  select count(*) from (
    select 1 from jobs where state = {SCHEDULED} and due_at <= ?1 and queue in (select value from json_each(?2))
      and (?4 is null or handler in (select value from json_each(?4)))
    order by due_at limit ?3)"""
PENDING_DEAD_LETTERS = f"select count(*) from (select 1 from dead_letters where state = {PENDING} limit ?)"

COUNTED = Select("queue, state, tier, n", "from counts where n > 0")
RUNNING_BY_QUEUE = Select(
    "queue, n",
    f"""from (
      select queue, count(*) as n from json_each(?) as it cross join jobs on jobs.id = it.value and jobs.state = {IN_FLIGHT}
      group by queue)""",
)
SUPERVISORS = Select("id, owner, host, pid, state, seen_at, json(workers)", "from supervisors")
HOLDS_LEASES = f"select 1 from jobs where state = {IN_FLIGHT} and owner = ?"
_UNSEEN = 3_600_000_000


class Queries:
    def __init__(self, connection: Connection, policies: Policies, owner: Ownership, lock: OwnerLock) -> None:
        self._connection, self._policies, self._owner, self._lock = connection, policies, owner, lock

    def get(self, id: int) -> dict[str, Any] | None:
        with self._connection.snapshot():
            found = self.jobs_shown([id])
        return found[0] if found else None

    def list_jobs(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        handler: str | None = None,
        dead_letter: str | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        source, parameters = filtered_ids(state, queue, handler, dead_letter)
        with self._connection.snapshot():
            ids = self._connection.json(f"select json_group_array(id) from ({source} limit ?)", *parameters, limit)
            return self.jobs_shown(ids)

    def jobs_shown(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The jobs that exist, in the order of `ids`."""
        batch = packed(ids)
        errors: dict[int, list[Mapping[str, Any]]] = {}
        for job_id, record in self._connection.rows(ATTEMPTS, batch):
            errors.setdefault(job_id, []).append(record)
        return [job_dict(self._shown(row, errors)) for row in self._connection.rows(SHOWN, batch)]

    def _shown(self, row: Sequence[Any], errors: Mapping[int, Sequence[Mapping[str, Any]]]) -> Shown:
        id, handler, payload, queue, priority, state, retries, policy, options, *rest, dead_letter = row
        most = own_max_retries(options, None if policy is None else self._policies.get(policy))
        known = (id, handler, payload, queue, priority, STATES[state].value, retries, most, *rest)
        return Shown._make((*known, errors.get(id, ()), DEAD_LETTERS[dead_letter or WITHDRAWN]))

    def remaining(
        self,
        served: frozenset[str] | None,
        latest: float | None,
        most: int = MAX_COUNTED,
        handlers: Collection[str] | None = None,
    ) -> dict[str, int]:
        with self._connection.snapshot():
            self._connection.counts.write()
            paused = self._connection.json(PAUSED)
            counted = [
                (queue, state, n)
                for queue, state, n in self._connection.rows(UNFINISHED)
                if n and queue not in paused and (served is None or queue in served)
            ]
            left = {of: sum(n for _, state, n in counted if state == of) for of in (SCHEDULED, READY, IN_FLIGHT)}
            if (latest is not None or handlers is not None) and left[SCHEDULED]:
                waiting = packed(list({queue for queue, state, _ in counted if state == SCHEDULED}))
                due_by = LAST_TIME if latest is None else microseconds(latest)
                known = None if handlers is None else packed(list(handlers))
                left[SCHEDULED] = self._connection.value(DUE_BY, due_by, waiting, most, known)
            dead_letters = self._connection.value(PENDING_DEAD_LETTERS, most)
        counts = {STATES[state].value: n for state, n in left.items()} | {"dead_letters": dead_letters}
        return {name: n for name, n in counts.items() if n}

    def stats(self) -> dict[str, Any]:
        with self._connection.snapshot():
            self._connection.counts.write()
            supervisors = self._supervisors()
            processing = dict(self._connection.rows(RUNNING_BY_QUEUE, packed(running_jobs(supervisors))))
            paused = frozenset(self._connection.json(PAUSED))
            queues = queue_rows(self._connection.rows(COUNTED), paused, processing)
        return {"queues": queues, "supervisors": supervisors}

    def _supervisors(self) -> list[dict[str, Any]]:
        """All but those that hold no lease and have left, are provably gone, or have not been seen for an hour."""
        unseen = self._connection.now() - _UNSEEN
        shown = []
        for id, owner, host, pid, state, seen_at, workers in self._connection.rows(SUPERVISORS):
            gone = state == LEFT or (id != self._owner.id and self._lock.is_gone(owner))
            if (gone or seen_at < unseen) and not self._connection.value(HOLDS_LEASES, id):
                continue
            state = "gone" if gone else state
            workers = [] if gone else workers
            shown.append(
                {"owner": owner, "host": host, "pid": pid, "state": state, "seen_at": iso(seen_at), "workers": workers}
            )
        return shown


def filtered_ids(
    state: JobState | None, queue: str | None, handler: str | None, dead_letter: str | None
) -> tuple[str, list[Any]]:
    """A query for ids, newest first; finished jobs by when they finished, so that an index leads to them.

    A `+` keeps SQLite from the index of that column: the few jobs in flight or scheduled are all sorted; of the many that are
    ready none is, since the newest come first in the table itself.
    """
    conditions: list[str] = []
    parameters: list[Any] = []
    if state is not None:
        conditions.append(f"jobs.state = {CODES[state]}")
        if state.terminal:
            conditions.append(f"jobs.state >= {SUCCEEDED}")
    for column, value in (("+queue", queue), ("handler", handler)):
        if value is not None:
            conditions.append(f"{column} = ?")
            parameters.append(value)
    source = "jobs"
    if dead_letter is not None:
        source = "dead_letters cross join jobs on jobs.id = dead_letters.job_id"
        conditions.append(f"dead_letters.state in ({', '.join(map(str, DEAD_LETTER_CODES[dead_letter]))})")
    where = f"where {' and '.join(conditions)}" if conditions else ""
    finished = state is not None and state.terminal and dead_letter is None
    few = state in (JobState.SCHEDULED, JobState.IN_FLIGHT) and dead_letter is None
    order = "finished_at desc, jobs.id desc" if finished else f"{'+' if few else ''}jobs.id desc"
    return f"select jobs.id as id from {source} {where} order by {order}", parameters
