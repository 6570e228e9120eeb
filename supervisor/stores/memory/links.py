"""Jobs that wait for other jobs in memory: they are blocked until those have ended. Each change of a job's state goes on from here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supervisor.jobs import JobState
from supervisor.stores.memory.groups import Groups
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.keys import Keys
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.memory.workflows import Workflows


class Links:
    """The relations between jobs. All calls are made inside the transaction that changes the jobs."""

    def __init__(self, state: MemoryState) -> None:
        self._state, self._keys, self._workflows, self.groups = state, Keys(state), Workflows(state), Groups(state)

    def newly_ready(self) -> frozenset[str]:
        """Return the queues in which blocked jobs were made ready since the last call."""
        found = frozenset(self._state.made_ready)
        self._state.made_ready.clear()
        return found

    def due(self, job: JobRecord) -> None:
        """Block this ready job if another one holds its key, or give it a turn."""
        if job.row.extras is not None and self._keys.acquire(job):
            self._state.change(job, state=JobState.BLOCKED, held_back=None)
        elif job.row.extras is not None or self._state.turns:
            self.groups.take_turn(job)

    def linked(self, child: JobRecord) -> None:
        """Let this job, which is new or replaced, and blocked, go on once its parents have ended. Raises NoSuchParent and
        ParentsInCircle."""
        self._go_on(self._workflows.link(child))

    def leave(self, job: JobRecord) -> None:
        """Take its key from this job, which is to wait for parents: another one with the key goes on."""
        if (next_job := self._keys.release(job, deleted=True)) is not None:
            self._resume(next_job)

    def run_again(self, jobs: Sequence[JobRecord]) -> None:
        """Block those of these jobs, which are ready again, that have to wait, and the jobs that wait for these again."""
        waiting, free = self._workflows.run_again(jobs)
        for job in jobs:
            if job.id in waiting:
                self._state.change(job, state=JobState.BLOCKED)
            else:
                self._workflows.give_results(job)
                self.due(job)
        self._go_on(free)

    def ended(self, job: JobRecord, deleted: bool = False) -> None:
        """Let the jobs go on that have waited for this one, which has ended, or is about to be `deleted`."""
        if job.row.extras is not None and (next_job := self._keys.release(job, deleted)) is not None:
            self._resume(next_job)
        if job.links or job.id in self._state.children:
            self._go_on(self._workflows.ended(job, deleted))

    def _go_on(self, jobs: Iterable[JobRecord]) -> None:
        """Let these jobs wait for their parents no longer: they are due now or later, or wait for their keys."""
        now = self._state.now()
        for job in jobs:
            self._workflows.give_results(job)
            if job.due_at > now:
                self._state.change(job, state=JobState.SCHEDULED)
                self._state.made_ready.add(job.row.queue)
            else:
                self._state.change(job, state=JobState.READY, due_at=max(job.due_at, now))
                self.due(job)
                if job.state is JobState.READY:
                    self._state.made_ready.add(job.row.queue)

    def _resume(self, job: JobRecord) -> None:
        self._state.change(job, state=JobState.READY)
        self.groups.take_turn(job)
        self._state.made_ready.add(job.row.queue)
