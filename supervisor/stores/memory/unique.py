"""Unique keys in memory: see `supervisor.stores.unique`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from supervisor.errors import JobExists
from supervisor.jobs import JobState, Tier
from supervisor.stores.codes import CODES
from supervisor.stores.extras import ExistingId, Extras
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.links import Links
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.memory.unique_holds import UniqueHold
from supervisor.stores.records import EnqueueRow, microseconds
from supervisor.stores.unique import held_by, hold_of, replaced_extras

_WAITS = (JobState.BLOCKED, JobState.SCHEDULED, JobState.READY)


class UniqueKeys:
    """All calls are made inside the transaction that changes the jobs."""

    def __init__(self, state: MemoryState, links: Links) -> None:
        self._state, self._links = state, links

    def take(self, id: int, row: EnqueueRow, extras: Extras) -> ExistingId | None:
        """Give the key to the job that is to have this `id`. If another job has it, return that one, which the row may have replaced.
        Raises JobExists."""
        if (key := extras.unique) is None:
            return None
        hold = self._state.unique.get(key)
        if hold is None or not self._holds(hold):
            self._state.unique.set(key, UniqueHold(id, *hold_of(extras, self._state.now())))
            return None
        if extras.on_conflict == "reject":
            raise JobExists(key, hold.job_id)
        job = self._state.jobs.get(hold.job_id)
        if extras.on_conflict == "replace" and job is not None and job.state in _WAITS:
            self._replace(job, row, extras)
            self._state.unique.set(key, UniqueHold(job.id, *hold_of(extras, self._state.now())))
        return ExistingId(hold.job_id)

    def retake(self, ids: Iterable[int]) -> dict[int, str]:
        """Give the keys to these ended jobs, which are to run again. Return why some may not."""
        refused: dict[int, str] = {}
        taken: dict[str, int] = {}
        for id in ids:
            extras = self._state.jobs[id].row.extras
            if extras is None or extras.unique is None:
                continue
            key = extras.unique
            other = taken.get(key) or self._unfinished(key, id)
            if other is not None:
                refused[id] = held_by(key, other)
                continue
            taken[key] = id
            if not isinstance(extras.unique_while, int):
                self._state.unique.set(key, UniqueHold(id, *hold_of(extras, self._state.now())))
        return refused

    def forget(self, job: JobRecord) -> None:
        """Forget the key of a job that is deleted. One that is taken for a time stays so."""
        extras = job.row.extras
        if extras is not None and extras.unique is not None:
            hold = self._state.unique.get(extras.unique)
            if hold is not None and hold.job_id == job.id and hold.until is None:
                self._state.unique.set(extras.unique, None)

    def prune(self, limit: int) -> None:
        """Forget keys whose time is over."""
        for key in list(islice(self._state.unique.past(self._state.now()), limit)):
            self._state.unique.set(key, None)

    def _holds(self, hold: UniqueHold) -> bool:
        if hold.until is not None:
            return hold.until > self._state.now()
        job = self._state.jobs.get(hold.job_id)
        return job is not None and CODES[job.state] < hold.below

    def _unfinished(self, key: str, id: int) -> int | None:
        hold = self._state.unique.get(key)
        if hold is None or hold.job_id == id or not self._holds(hold):
            return None
        job = self._state.jobs.get(hold.job_id)
        return None if job is None or job.state.terminal else job.id

    def _replace(self, job: JobRecord, row: EnqueueRow, extras: Extras) -> None:
        now, before, state, due = self._state.now(), job.state, job.state, job.due_at
        if state is not JobState.BLOCKED:
            due = row.at if row.at is not None else now + microseconds(row.delay or 0.0)
            state = JobState.SCHEDULED if due > now else JobState.READY
        if state is not JobState.READY:
            self._links.groups.free_turn(job)
        age = job.id if job.tier == Tier.RETRY else job.age
        row = row._replace(extras=replaced_extras(job.row.extras, extras))
        self._state.change(
            job, row=row, state=state, due_at=due, tier=Tier.FRESH, age=age, retries=0, started_at=None,
            replaced_at=now, may_expire=True, snoozes=0, snoozed_until=None,
        )  # fmt: skip
        if state is JobState.READY and before is not JobState.READY:
            self._links.due(job)
