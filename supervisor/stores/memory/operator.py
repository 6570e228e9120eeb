"""The operator's verbs in memory."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from supervisor.jobs import JobState, Tier
from supervisor.stores.codes import CODES, DEAD_LETTERS, STATES
from supervisor.stores.memory.claim import Claims
from supervisor.stores.operator_commands import Target


class OperatorChanges(Claims):
    def set_paused(self, queue: str, paused: bool) -> None:
        (self._memory.paused.add if paused else self._memory.paused.discard)(queue)

    def find_past(self, state: int, age: int, limit: int) -> Sequence[int]:
        latest = self._now() - age
        past = [
            job
            for job in self._memory.jobs.values()
            if job.state is STATES[state] and (job.finished_at or 0) <= latest and job.dead_letter_state != "pending"
        ]
        past.sort(key=lambda job: job.finished_at or 0)
        return [job.id for job in past[:limit]]

    def count(self, state: int, queue: str, tier: int, n: int = 1) -> None:
        """The shelf counts what is filed."""

    def find_dead(self, after: int, limit: int) -> Sequence[int]:
        return [id for id, job in self._memory.jobs.items() if id > after and job.dead_letter_state is not None][:limit]

    def find_targets(self, ids: Sequence[int]) -> list[Target]:
        jobs = [self._memory.jobs[id] for id in dict.fromkeys(ids) if id in self._memory.jobs]
        return [
            Target(job.id, CODES[job.state], job.row.queue, job.tier, DEAD_LETTERS.index(job.dead_letter_state))
            for job in jobs
        ]

    def make_cancelled(self, ids: Sequence[int]) -> None:
        for job in map(self._memory.jobs.__getitem__, ids):
            self._change(job, state=JobState.CANCELLED, token=job.token + 1, finished_at=self._now(), owner=None)

    def make_due(self, ids: Sequence[int]) -> None:
        now = self._now()
        for job in map(self._memory.jobs.__getitem__, ids):
            self._change(job, state=JobState.READY, due_at=now, age=now if job.tier == Tier.RETRY else job.age)

    def make_fresh(self, ids: Sequence[int]) -> None:
        for job in map(self._memory.jobs.__getitem__, ids):
            dead_letter = copy(job.dead_letter)
            if dead_letter is not None:
                dead_letter.state = None
            self._change(
                job,
                state=JobState.READY,
                tier=Tier.FRESH,
                age=self._next_age(),
                due_at=self._now(),
                retries=0,
                expired_count=0,
                started_at=None,
                finished_at=None,
                result=None,
                dead_letter=dead_letter,
            )

    def remove(self, ids: Sequence[int]) -> None:
        for job in map(self._memory.jobs.__getitem__, ids):
            self._memory.remember(job.id)
            self._memory.take_out(job)
            del self._memory.jobs[job.id]
