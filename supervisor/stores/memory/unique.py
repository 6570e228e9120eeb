"""Unique keys in memory: see `supervisor.stores.unique`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from supervisor.errors import JobExists
from supervisor.stores.codes import CODES
from supervisor.stores.extras import ExistingId, Extras
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.memory.unique_holds import UniqueHold
from supervisor.stores.unique import held_by, hold_of


class UniqueKeys:
    """All calls are made inside the transaction that changes the jobs."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    def take(self, id: int, extras: Extras) -> ExistingId | None:
        """Give the key to the job that is to have this `id`. If another job has the key, return that one. Raises JobExists."""
        if (key := extras.unique) is None:
            return None
        hold = self._state.unique.get(key)
        if hold is None or not self._holds(hold):
            self.give(key, id, extras)
            return None
        if extras.on_conflict == "reject":
            raise JobExists(key, hold.job_id)
        return ExistingId(hold.job_id)

    def give(self, key: str, id: int, extras: Extras) -> None:
        """Give the key to this job, whoever has it."""
        self._state.unique.set(key, UniqueHold(id, *hold_of(extras, self._state.now())))

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
                self.give(key, id, extras)
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
