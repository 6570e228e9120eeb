"""The operator's changes of jobs in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace

from supervisor.jobs import JobState, Tier
from supervisor.stores.codes import CODES, DEAD_LETTERS, LEFT, STATES
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.links import Links
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.memory.unique import UniqueKeys
from supervisor.stores.operator_commands import Target
from supervisor.stores.records import Place
from supervisor.stores.sinks import Sinks, sinks_of
from supervisor.stores.workflows import CANCELLED_BY


class OperatorChanges:
    """Implements `supervisor.stores.operator_commands.OperatorChanges`."""

    def __init__(self, state: MemoryState, links: Links) -> None:
        self._state, self._links, self._unique = state, links, UniqueKeys(state)

    def pending_lists(self) -> list[tuple[str, str]]:
        return list(self._state.pending_by_lists())

    def running_sinks(self) -> Sinks:
        running = [owner.sinks for owner in self._state.owners.values() if owner.presence.state != LEFT]
        return frozenset().union(*running)

    def set_owed(self, before: tuple[str, str], owed: str, state: int, limit: int) -> int:
        jobs = self._state.pending_by_lists().get(before, [])[:limit]
        for job in jobs:
            assert job.dead_letter is not None
            record = replace(job.dead_letter, owed=sinks_of(owed), state=DEAD_LETTERS[state])
            self._state.change(job, dead_letter=record)
        return len(jobs)

    def set_paused(self, queue: str, paused: bool) -> None:
        (self._state.paused.add if paused else self._state.paused.discard)(queue)

    def find_dead(self, after: int, limit: int) -> Sequence[int]:
        return [id for id, job in self._state.jobs.items() if id > after and job.dead_letter_state is not None][:limit]

    def page_end(self, state: int, age: int, after: Place, size: int) -> Place | None:
        """All are one page."""
        return None

    def forget_groups(self, limit: int) -> None:
        self._links.groups.forget_idle(limit)

    def find_past(self, state: int, age: int, after: Place, until: Place, limit: int) -> Sequence[int]:
        latest = self._state.now() - age
        past = [
            job
            for job in self._state.jobs.values()
            if job.state is STATES[state]
            and (job.finished_at or 0) <= latest
            and job.dead_letter_state != "pending"
            and not job.holds_key
            and not self._is_waited_for(job)
        ]
        past.sort(key=lambda job: job.finished_at or 0)
        return [job.id for job in past[:limit]]

    def _is_waited_for(self, job: JobRecord) -> bool:
        return any(_may_need_parents(self._state.jobs[child]) for child in self._state.children.get(job.id, ()))

    def find_targets(self, ids: Sequence[int]) -> list[Target]:
        return [
            Target(job.id, CODES[job.state], job.row.queue, job.tier, DEAD_LETTERS.index(job.dead_letter_state))
            for job in self._jobs([id for id in dict.fromkeys(ids) if id in self._state.jobs])
        ]

    def count(self, state: int, queue: str, tier: int, n: int = 1) -> None:
        """Do nothing: the state counts the jobs itself."""

    def make_cancelled(self, ids: Sequence[int]) -> None:
        now = self._state.now()
        for job in self._jobs(ids):
            self._links.groups.free_turn(job)
            self._state.change(job, state=JobState.CANCELLED, token=job.token + 1, finished_at=now, owner=None)
            self._links.ended(job)

    def make_due(self, ids: Sequence[int]) -> None:
        now = self._state.now()
        for job in self._jobs(ids):
            self._state.change(job, state=JobState.READY, due_at=now, age=now if job.tier == Tier.RETRY else job.age)
            self._links.due(job)

    def retake_unique_keys(self, ids: Sequence[int]) -> Mapping[int, str]:
        return self._unique.retake(ids)

    def prune_unique_keys(self, limit: int) -> None:
        self._unique.prune(limit)

    def make_fresh(self, ids: Sequence[int]) -> None:
        for job in self._jobs(ids):
            dead_letter = copy(job.dead_letter)
            if dead_letter is not None:
                dead_letter.state = None
            self._state.change(
                job,
                state=JobState.READY,
                tier=Tier.FRESH,
                age=self._state.next_age(),
                due_at=self._state.now(),
                retries=0,
                expired_count=0,
                snoozes=0,
                snoozed_until=None,
                started_at=None,
                finished_at=None,
                result=None,
                dead_letter=dead_letter,
            )
        self._links.run_again(self._jobs(ids))

    def set_queue(self, ids: Sequence[int], before: Collection[str], queue: str) -> None:
        for job in self._jobs(ids):
            self._links.groups.free_turn(job)
            self._state.change(job, row=job.row._replace(queue=queue))
            self._links.groups.take_turn(job)

    def remove(self, ids: Sequence[int]) -> None:
        for job in self._jobs(ids):
            self._links.groups.free_turn(job)
            self._links.ended(job, deleted=True)
            self._unique.forget(job)
            self._state.remove(job)

    def _jobs(self, ids: Sequence[int]) -> list[JobRecord]:
        return [self._state.jobs[id] for id in ids]


def _may_need_parents(job: JobRecord) -> bool:
    """Return whether the job waits, or is to get the results of its parents if it or one of them is run again."""
    was_cancelled = job.state is JobState.CANCELLED and CANCELLED_BY in job.links.values()
    return job.state in (JobState.BLOCKED, JobState.FAILED) or was_cancelled
