"""The operator's verbs in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from supervisor.jobs import JobState, Tier
from supervisor.stores.base import Retention
from supervisor.stores.memory_claims import Claims
from supervisor.stores.memory_shelf import KeptJob
from supervisor.stores.shapes import (
    NO_SUCH_JOB,
    Verdict,
    microseconds,
    refuse_cancel,
    refuse_delete,
    refuse_redrive,
    refuse_retry,
)


class Verbs(Claims):
    def cancel(self, ids: Sequence[int]) -> Verdict:
        return self._do(ids, refuse_cancel, self._cancel)

    def retry(self, ids: Sequence[int]) -> Verdict:
        return self._do(ids, refuse_retry, self._retry)

    def redrive(self, ids: Sequence[int] | None, force: bool = False) -> Verdict:
        return self._do(ids, lambda state, letter: refuse_redrive(state, letter, force), self._redrive)

    def delete(self, ids: Sequence[int], force: bool = False) -> Verdict:
        return self._do(ids, lambda state, letter: refuse_delete(state, letter, force), self._delete)

    def purge(self, force: bool = False) -> Verdict:
        return self._do(None, lambda state, letter: refuse_delete(state, letter, force), self._delete)

    def pause(self, queue: str, paused: bool) -> None:
        with self.transaction():
            (self._shelf.paused.add if paused else self._shelf.paused.discard)(queue)
        self.ring()

    def prune(self, retention: Retention, limit: int) -> int:
        kept = {
            JobState.SUCCEEDED: retention.succeeded,
            JobState.CANCELLED: retention.cancelled,
            JobState.FAILED: retention.failed,
        }
        with self.transaction():
            now = self._now()
            past = [
                job
                for job in self._shelf.jobs.values()
                if (seconds := kept.get(job.state)) is not None
                and (job.finished_at or 0) <= now - microseconds(seconds)
                and job.letter_state != "pending"
            ]
            past.sort(key=lambda job: job.finished_at or 0)
            for job in past[:limit]:
                self._delete(job)
            return len(past[:limit])

    def _do(
        self,
        ids: Sequence[int] | None,
        refuse: Callable[[JobState, str | None], str | None],
        change: Callable[[KeptJob], None],
    ) -> Verdict:
        done: list[int] = []
        refused: dict[int, str] = {}
        with self.transaction():
            if ids is None:
                ids = [job.id for job in self._shelf.jobs.values() if job.letter_state is not None]
            for id in dict.fromkeys(ids):
                job = self._shelf.jobs.get(id)
                why = NO_SUCH_JOB if job is None else refuse(job.state, job.letter_state)
                if job is None or why is not None:
                    refused[id] = why or NO_SUCH_JOB
                else:
                    change(job)
                    done.append(id)
        self.ring()
        return done, refused

    def _cancel(self, job: KeptJob) -> None:
        self._change(job, state=JobState.CANCELLED, token=job.token + 1, finished_at=self._now(), owner=None)

    def _retry(self, job: KeptJob) -> None:
        if job.state is JobState.SCHEDULED:
            now = self._now()
            self._change(job, state=JobState.READY, due_at=now, age=now if job.tier == Tier.RETRY else job.age)
        else:
            self._redrive(job)

    def _redrive(self, job: KeptJob) -> None:
        letter = copy(job.letter)
        if letter is not None:
            letter.state = None
        self._change(
            job,
            state=JobState.READY,
            tier=Tier.FRESH,
            age=self._next_age(),
            due_at=self._now(),
            retries=0,
            lapses=0,
            started_at=None,
            finished_at=None,
            result=None,
            letter=letter,
        )

    def _delete(self, job: KeptJob) -> None:
        self._shelf.remember(job.id)
        self._shelf.take_out(job)
        del self._shelf.jobs[job.id]
