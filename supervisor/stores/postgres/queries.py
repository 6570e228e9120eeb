"""Questions to a PostgreSQL store: what people, programs and --drain ask. Nothing here writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
)
from supervisor.stores.counts import queue_rows, running_jobs
from supervisor.stores.postgres.claim import NOW, policy_from
from supervisor.stores.postgres.connection import array
from supervisor.stores.postgres.owner_lock import is_gone
from supervisor.stores.postgres.settle import Settles
from supervisor.stores.records import Shown, iso, job_dict, microseconds, own_max_retries

SHOWN = """select jobs.id, handler, coalesce(payload, ''), queue, priority, jobs.state, retries, policy, options, jobs.due_at,
    created_at, started_at, finished_at, result, headers, dead_letters.state
  from unnest($1::bigint[]) with ordinality as it(id, place) join {s}.jobs on jobs.id = it.id
  left join {s}.dead_letters on dead_letters.job_id = jobs.id order by place"""
ATTEMPTS = "select job_id, at, record from {s}.attempts where job_id = any($1::bigint[]) order by id"

COUNTED = "select queue, state, tier, sum(n)::bigint from {s}.counts group by queue, state, tier having sum(n) > 0"
UNFINISHED = f"select queue, state, sum(n)::bigint from {{s}}.counts where state < {SUCCEEDED} group by queue, state"
# In the order of their index, so that no more is read than is counted.
DUE_BY = f"""select count(*) from (select from {{s}}.jobs
  where state = {SCHEDULED} and due_at <= $1 and queue = any($2::text[]) order by due_at, id limit $3) as it"""
PENDING_DEAD_LETTERS = f"""select count(*) from (select from {{s}}.dead_letters
  where state = {PENDING} order by due_at, job_id limit $1) as it"""
RUNNING_BY_QUEUE = f"""select queue, count(*) from {{s}}.jobs
  where id = any($1::bigint[]) and state = {IN_FLIGHT} group by queue"""
SUPERVISORS = f"""select id, owner, host, pid, state, place, seen_at, workers, {NOW} > unseen_after,
    exists (select 1 from {{s}}.jobs where jobs.state = {IN_FLIGHT} and jobs.owner = supervisors.id)
  from {{s}}.supervisors order by id"""


class Queries(Settles):
    def get(self, id: int) -> dict[str, Any] | None:
        with self.snapshot():
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
        query, parameters = filtered(state, queue, handler, dead_letter, limit)
        with self.snapshot():
            return self.jobs_shown(self.column(query, *parameters))

    def jobs_shown(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The jobs there are, in the order of `ids`."""
        errors: dict[int, list[Mapping[str, Any]]] = {}
        for job_id, at, record in self.rows(ATTEMPTS, array(ids)):
            errors.setdefault(job_id, []).append({**orjson.loads(record), "at": at})
        return [job_dict(_shown(row, errors.get(row[0], ()))) for row in self.rows(SHOWN, array(ids))]

    def clock(self) -> float:
        with self.snapshot():
            return float(self.value(f"select {NOW}")) / 1_000_000

    def remaining(self, served: frozenset[str] | None, latest: float | None, most: int = MAX_COUNTED) -> dict[str, int]:
        with self.snapshot():
            self.write_counts()
            paused = self.paused()
            counted = [
                (queue, state, n)
                for queue, state, n in self.rows(UNFINISHED)
                if n and queue not in paused and (served is None or queue in served)
            ]
            left = {of: sum(n for _, state, n in counted if state == of) for of in (SCHEDULED, READY, IN_FLIGHT)}
            if latest is not None and left[SCHEDULED]:
                waiting = {queue for queue, state, _ in counted if state == SCHEDULED}
                left[SCHEDULED] = self.value(DUE_BY, microseconds(latest), list(waiting), most)
            dead_letters = self.value(PENDING_DEAD_LETTERS, most)
        counts = {STATES[state].value: n for state, n in left.items()} | {"dead_letters": dead_letters}
        return {what: n for what, n in counts.items() if n}

    def stats(self) -> dict[str, Any]:
        with self.snapshot():
            self.write_counts()
            supervisors = self._supervisors()
            processing: dict[str, int] = dict(self.rows(RUNNING_BY_QUEUE, array(running_jobs(supervisors))))
            queues = queue_rows(self.rows(COUNTED), self.paused(), processing)
        return {"queues": queues, "supervisors": supervisors}

    def _supervisors(self) -> list[dict[str, Any]]:
        """All but those that hold no lease and have left, are provably gone, or were to be seen long ago."""
        shown = []
        for id, owner, host, pid, state, place, seen_at, workers, overdue, holds in self.rows(SUPERVISORS):
            gone = state == LEFT or (id != self.owner_id and is_gone(place))
            if (gone or overdue) and not holds:
                continue
            shown.append(
                {
                    "owner": owner,
                    "host": host,
                    "pid": pid,
                    "state": "gone" if gone else state,
                    "seen_at": iso(seen_at),
                    "workers": [] if gone else orjson.loads(workers),
                }
            )
        return shown


def _shown(row: Sequence[Any], errors: Sequence[Mapping[str, Any]]) -> Shown:
    id, handler, payload, queue, priority, state, retries, policy, options, *rest, dead_letter = row
    due_at, created_at, started_at, finished_at, result, headers = rest
    return Shown(
        id=id,
        handler=handler,
        payload=payload,
        queue=queue,
        priority=priority,
        state=STATES[state].value,
        retries=retries,
        max_retries=own_max_retries(options, None if policy is None else policy_from(policy, None)),
        due_at=due_at,
        created_at=created_at,
        started_at=started_at,
        finished_at=finished_at,
        result=result,
        headers=headers,
        errors=errors,
        dead_letter=None if dead_letter is None else DEAD_LETTERS[dead_letter],
    )


def filtered(
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
