"""Queries of people, programs and --drain to a PostgreSQL store. Nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

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
from supervisor.stores.postgres.claim import PAUSED
from supervisor.stores.postgres.connection import NOW, Connection, array
from supervisor.stores.postgres.counts import Counts
from supervisor.stores.postgres.owner_lock import is_gone
from supervisor.stores.postgres.ownership import Ownership
from supervisor.stores.postgres.policies import stored_policy
from supervisor.stores.records import LAST_TIME, Shown, iso, job_dict, microseconds, own_max_retries

SHOWN = """
  select jobs.id, handler, coalesce(payload, ''), queue, priority, jobs.state, retries, policy, options, jobs.due_at,
    created_at, started_at, finished_at, result, headers, dead_letters.state
  from unnest($1::bigint[]) with ordinality as it(id, place) join {s}.jobs on jobs.id = it.id
  left join {s}.dead_letters on dead_letters.job_id = jobs.id order by place"""
ATTEMPTS = "select job_id, at, record from {s}.attempts where job_id = any($1::bigint[]) order by id"

COUNTED = "select queue, state, tier, sum(n)::bigint from {s}.counts group by queue, state, tier having sum(n) > 0"
UNFINISHED = f"select queue, state, sum(n)::bigint from {{s}}.counts where state < {SUCCEEDED} group by queue, state"
# In the order of their index, so that no more is read than is counted.
DUE_BY = f"""
  select count(*) from (
    select from {{s}}.jobs where state = {SCHEDULED} and due_at <= $1 and queue = any($2::text[])
      and ($4::text[] is null or handler = any($4))
    order by due_at, id limit $3) as it"""
PENDING_DEAD_LETTERS = f"""
  select count(*) from (
    select from {{s}}.dead_letters where state = {PENDING} order by due_at, job_id limit $1) as it"""
RUNNING_BY_QUEUE = f"""
  select queue, count(*) from {{s}}.jobs where id = any($1::bigint[]) and state = {IN_FLIGHT} group by queue"""
SUPERVISORS = f"""
  select id, owner, host, pid, state, owner_lock, seen_at, workers, {NOW} > unseen_after,
    exists (select 1 from {{s}}.jobs where jobs.state = {IN_FLIGHT} and jobs.owner = supervisors.id)
  from {{s}}.supervisors order by id"""
CLOCK = f"select {NOW}"


class Queries:
    def __init__(self, connection: Connection, counts: Counts, owner: Ownership) -> None:
        self._connection, self._counts, self._owner = connection, counts, owner

    def clock(self) -> float:
        with self._connection.snapshot():
            return float(self._connection.value(CLOCK)) / 1_000_000

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
        query, parameters = filtered_ids(state, queue, handler, dead_letter, limit)
        with self._connection.snapshot():
            return self.jobs_shown(self._connection.column(query, *parameters))

    def jobs_shown(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The jobs that exist, in the order of `ids`."""
        batch = array(ids)
        errors: dict[int, list[Mapping[str, Any]]] = {}
        for job_id, at, record in self._connection.rows(ATTEMPTS, batch):
            errors.setdefault(job_id, []).append({**orjson.loads(record), "at": at})
        return [job_dict(_shown(row, errors)) for row in self._connection.rows(SHOWN, batch)]

    def remaining(
        self,
        served: frozenset[str] | None,
        latest: float | None,
        most: int = MAX_COUNTED,
        handlers: Collection[str] | None = None,
    ) -> dict[str, int]:
        with self._connection.snapshot():
            self._counts.write()
            paused = frozenset(self._connection.column(PAUSED))
            counted = [
                (queue, state, n)
                for queue, state, n in self._connection.rows(UNFINISHED)
                if n and queue not in paused and (served is None or queue in served)
            ]
            left = {of: sum(n for _, state, n in counted if state == of) for of in (SCHEDULED, READY, IN_FLIGHT)}
            if (latest is not None or handlers is not None) and left[SCHEDULED]:
                waiting = list({queue for queue, state, _ in counted if state == SCHEDULED})
                due_by = LAST_TIME if latest is None else microseconds(latest)
                known = None if handlers is None else list(handlers)
                left[SCHEDULED] = self._connection.value(DUE_BY, due_by, waiting, most, known)
            dead_letters = self._connection.value(PENDING_DEAD_LETTERS, most)
        counts = {STATES[state].value: n for state, n in left.items()} | {"dead_letters": dead_letters}
        return {name: n for name, n in counts.items() if n}

    def stats(self) -> dict[str, Any]:
        with self._connection.snapshot():
            self._counts.write()
            supervisors = self._supervisors()
            processing: dict[str, int] = dict(self._connection.rows(RUNNING_BY_QUEUE, array(running_jobs(supervisors))))
            paused = frozenset(self._connection.column(PAUSED))
            queues = queue_rows(self._connection.rows(COUNTED), paused, processing)
        return {"queues": queues, "supervisors": supervisors}

    def _supervisors(self) -> list[dict[str, Any]]:
        """All but those that hold no lease and have left, are provably gone, or should have been seen long ago."""
        shown = []
        for id, owner, host, pid, state, lock, seen_at, workers, overdue, has_leases in self._connection.rows(
            SUPERVISORS
        ):
            gone = state == LEFT or (id != self._owner.id and is_gone(lock))
            if (gone or overdue) and not has_leases:
                continue
            state = "gone" if gone else state
            workers = [] if gone else orjson.loads(workers)
            shown.append(
                {"owner": owner, "host": host, "pid": pid, "state": state, "seen_at": iso(seen_at), "workers": workers}
            )
        return shown


def _shown(row: Sequence[Any], errors: Mapping[int, Sequence[Mapping[str, Any]]]) -> Shown:
    id, handler, payload, queue, priority, state, retries, policy, options, *rest, dead_letter = row
    most = own_max_retries(options, None if policy is None else stored_policy(policy, None))
    known = (id, handler, payload, queue, priority, STATES[state].value, retries, most, *rest)
    return Shown._make((*known, errors.get(id, ()), DEAD_LETTERS[dead_letter or WITHDRAWN]))


def filtered_ids(
    state: JobState | None, queue: str | None, handler: str | None, dead_letter: str | None, limit: int
) -> tuple[str, list[Any]]:
    """A query for ids, newest first; finished jobs by when they finished, so that an index leads to them."""
    conditions: list[str] = []
    parameters: list[Any] = []
    if state is not None:
        conditions.append(f"jobs.state = {CODES[state]}")
        if state.terminal:
            conditions.append(f"jobs.state >= {SUCCEEDED}")
    for column, value in (("queue", queue), ("handler", handler)):
        if value is not None:
            parameters.append(value)
            conditions.append(f"{column} = ${len(parameters)}")
    source = "{s}.jobs"
    if dead_letter is not None:
        source += " join {s}.dead_letters on dead_letters.job_id = jobs.id"
        conditions.append(f"dead_letters.state in ({', '.join(map(str, DEAD_LETTER_CODES[dead_letter]))})")
    where = f"where {' and '.join(conditions)}" if conditions else ""
    finished = state is not None and state.terminal and dead_letter is None
    order = "finished_at desc, jobs.id desc" if finished else "jobs.id desc"
    parameters.append(limit)
    return f"select jobs.id from {source} {where} order by {order} limit ${len(parameters)}", parameters
