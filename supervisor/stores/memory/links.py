"""Jobs that wait for other jobs in memory: they are blocked until those have ended. Each change of a job's state goes on from here."""

from __future__ import annotations

from supervisor.jobs import JobState
from supervisor.stores.memory.groups import Groups
from supervisor.stores.memory.keys import Keys
from supervisor.stores.memory.state import JobRecord, MemoryState


class Links:
    """The relations between jobs. All calls are made inside the transaction that changes the jobs."""

    def __init__(self, state: MemoryState) -> None:
        self._state, self._keys, self.groups = state, Keys(state), Groups(state)

    def newly_ready(self) -> frozenset[str]:
        """Return the queues in which blocked jobs were made ready since the last call."""
        found = frozenset(self._state.made_ready)
        self._state.made_ready.clear()
        return found

    def due(self, job: JobRecord) -> None:
        """Block this ready job if another one holds its key, or give it a turn."""
        if job.row.extras is not None and self._keys.acquire(job):
            self._state.change(job, state=JobState.BLOCKED)
        elif job.row.extras is not None or self._state.turns:
            self.groups.take_turn(job)

    def ended(self, job: JobRecord, deleted: bool = False) -> None:
        """Let the jobs go on that have waited for this one, which has ended, or is about to be `deleted`."""
        if job.row.extras is not None and (next_job := self._keys.release(job, deleted)) is not None:
            self._resume(next_job)

    def _resume(self, job: JobRecord) -> None:
        self._state.change(job, state=JobState.READY)
        self.groups.take_turn(job)
        self._state.made_ready.add(job.row.queue)
