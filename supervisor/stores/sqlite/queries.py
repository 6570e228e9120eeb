"""Questions to a SQLite store: what people, programs and --drain ask. Nothing here writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
)
from supervisor.stores.counts import queue_rows, running_jobs
from supervisor.stores.records import Shown, iso, job_dict, microseconds, own_max_retries
from supervisor.stores.sqlite.connection import packed
from supervisor.stores.sqlite.policies import BY_ID
from supervisor.stores.sqlite.settle import Settles

_SHOWN = """jobs.id, handler, coalesce(cast(payload as text), ''), queue, priority, jobs.state, retries, policy, options,
  jobs.due_at, created_at, started_at, finished_at, cast(result as text), cast(headers as text), dead_letters.state"""
_WITH_DEAD_LETTER = f"{BY_ID} left join dead_letters on dead_letters.job_id = jobs.id"

DUE_BY = f"""select count(*) from (select 1 from jobs where state = {SCHEDULED} and due_at <= ?1
  and queue in (select value from json_each(?2)) order by due_at limit ?3)"""
PENDING_DEAD_LETTERS = f"select count(*) from (select 1 from dead_letters where state = {PENDING} limit ?)"
RUNNING_BY_QUEUE = f"""(select queue, count(*) as n from json_each(?) as it cross join jobs
  on jobs.id = it.value and jobs.state = {IN_FLIGHT} group by queue)"""
_UNSEEN = 3_600_000_000


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
        source, parameters = _filtered(state, queue, handler, dead_letter)
        with self.snapshot():
            return self.jobs_shown(self.column("id", f"({source} limit ?)", *parameters, limit))

    def jobs_shown(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The jobs there are, in the order of `ids`."""
        batch = packed(ids)
        errors: dict[int, list[Mapping[str, Any]]] = {}
        for job_id, record in self.rows("job_id, json(record)", ATTEMPTS, batch):
            errors.setdefault(job_id, []).append(record)
        return [
            job_dict(self._shown(row, errors.get(row[0], ()))) for row in self.rows(_SHOWN, _WITH_DEAD_LETTER, batch)
        ]

    def _shown(self, row: Sequence[Any], errors: Sequence[Mapping[str, Any]]) -> Shown:
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
            max_retries=own_max_retries(options, None if policy is None else self.policy(policy)),
            due_at=due_at,
            created_at=created_at,
            started_at=started_at,
            finished_at=finished_at,
            result=result,
            headers=headers,
            errors=errors,
            dead_letter=None if dead_letter is None else DEAD_LETTERS[dead_letter],
        )

    def remaining(self, served: frozenset[str] | None, latest: float | None, most: int = MAX_COUNTED) -> dict[str, int]:
        with self.snapshot():
            self.write_counts()
            paused = self.paused()
            counted = [
                (queue, state, n)
                for queue, state, n in self.rows("queue, state, n", f"counts where state < {SUCCEEDED}")
                if n and queue not in paused and (served is None or queue in served)
            ]
            left = {of: sum(n for _, state, n in counted if state == of) for of in (SCHEDULED, READY, IN_FLIGHT)}
            if latest is not None and left[SCHEDULED]:
                waiting = {queue for queue, state, _ in counted if state == SCHEDULED}
                left[SCHEDULED] = self.value(DUE_BY, microseconds(latest), packed(list(waiting)), most)
            dead_letters = self.value(PENDING_DEAD_LETTERS, most)
        counts = {STATES[state].value: n for state, n in left.items()} | {"dead_letters": dead_letters}
        return {what: n for what, n in counts.items() if n}

    def stats(self) -> dict[str, Any]:
        with self.snapshot():
            self.write_counts()
            supervisors = self._supervisors()
            return {"queues": self._queues(running_jobs(supervisors)), "supervisors": supervisors}

    def _queues(self, running: Sequence[int]) -> list[dict[str, Any]]:
        processing = dict(self.rows("queue, n", RUNNING_BY_QUEUE, packed(running)))
        return queue_rows(self.rows("queue, state, tier, n", "counts where n > 0"), self.paused(), processing)

    def _supervisors(self) -> list[dict[str, Any]]:
        """All but those that hold no lease and have left, are provably gone, or have not been seen for an hour."""
        unseen = self.now() - _UNSEEN
        shown = []
        for id, owner, host, pid, state, seen_at, workers in self.rows(
            "id, owner, host, pid, state, seen_at, json(workers)", "supervisors order by id"
        ):
            gone = state == LEFT or (id != self.owner_id and self.notifier.is_gone(owner))
            if (gone or seen_at < unseen) and not self.value(_HOLDS, id):
                continue
            state = "gone" if gone else state
            workers = [] if gone else workers
            shown.append(
                {"owner": owner, "host": host, "pid": pid, "state": state, "seen_at": iso(seen_at), "workers": workers}
            )
        return shown


ATTEMPTS = "json_each(?) as it cross join attempts on attempts.job_id = it.value"
_HOLDS = f"select 1 from jobs where state = {IN_FLIGHT} and owner = ?"


def _filtered(
    state: JobState | None, queue: str | None, handler: str | None, dead_letter: str | None
) -> tuple[str, list[Any]]:
    """A query for ids, newest first; finished jobs by when they finished, so that an index leads to them.

    A `+` keeps SQLite from the index of that column: of the few in flight or scheduled all are sorted, of the many that are
    ready none, since the newest come first in the table itself.
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
