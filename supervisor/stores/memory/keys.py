"""The order of jobs that have the same key, in memory: one of them holds the key until it has ended, and the others are blocked."""

from __future__ import annotations

from heapq import heappop

from supervisor.jobs import JobState
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.state import Line, MemoryState


class Keys:
    """Gives keys to jobs. The line of a key is an index of the state: it has the blocked jobs that have the key."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    def acquire(self, job: JobRecord) -> bool:
        """Give the due job its key. Return whether it has to wait."""
        key = job.key
        if key is None or job.holds_key:
            return False
        line = self._state.lines.setdefault(key, Line())
        if line.holder is None:
            self._hold(line, job)
        return not job.holds_key

    def release(self, job: JobRecord, deleted: bool = False) -> JobRecord | None:
        """Take the key from a job that has ended or is `deleted`. Return the job that has it now, if one has waited."""
        key = job.key
        if key is None or not job.holds_key or (not deleted and keeps_its_key(job)):
            return None
        line = self._state.lines[key]
        line.holder = None
        self._state.change(job, holds_key=False)
        while line.waiting:
            next_job = self._state.jobs.get(heappop(line.waiting))
            if next_job is not None and next_job.state is JobState.BLOCKED and not next_job.waits_for_parents:
                self._hold(line, next_job)
                return next_job
        del self._state.lines[key]
        return None

    def _hold(self, line: Line, job: JobRecord) -> None:
        line.holder = job.id
        self._state.change(job, holds_key=True)


def keeps_its_key(job: JobRecord) -> bool:
    """Return whether the job has failed, and is to hold its key until it is redriven or deleted."""
    return job.state is JobState.FAILED and job.on_failure == "hold"
