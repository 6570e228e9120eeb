"""Dead letters in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from supervisor.stores.memory.owners import Owners
from supervisor.stores.memory.state import DeadLetterRecord, JobRecord
from supervisor.stores.records import DeadLetter, microseconds


class DeadLetterQueue(Owners):
    def claim_dead_letters(self, limit: int, ttl: float) -> list[DeadLetter]:
        with self.transaction():
            now = self._now()
            due = [job for job in self._pending() if job.dead_letter is not None and job.dead_letter.due_at <= now]
            due.sort(key=lambda job: job.dead_letter.due_at if job.dead_letter else 0)
            return [self._claim_dead_letter(job, now + microseconds(ttl)) for job in due[:limit]]

    def _pending(self) -> list[JobRecord]:
        return [job for job in self._memory.jobs.values() if job.dead_letter_state == "pending"]

    def _claim_dead_letter(self, job: JobRecord, until: int) -> DeadLetter:
        dead_letter = copy(job.dead_letter)
        assert dead_letter is not None
        dead_letter.token, dead_letter.tries, dead_letter.due_at = dead_letter.token + 1, dead_letter.tries + 1, until
        self._change(job, dead_letter=dead_letter)
        return DeadLetter(job.id, dead_letter.token, dead_letter.tries, dead_letter.accepted, job.shown())

    def mark_accepted(self, dead_letters: Sequence[DeadLetter], sink: str, wanted: frozenset[str]) -> list[int]:
        def accept(dead_letter: DeadLetterRecord) -> None:
            dead_letter.accepted |= {sink}
            if wanted <= dead_letter.accepted:
                dead_letter.state = "delivered"

        return self._change_dead_letters(dead_letters, accept)

    def postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> list[int]:
        def put_off(dead_letter: DeadLetterRecord) -> None:
            dead_letter.due_at = self._now() + microseconds(delay)

        return self._change_dead_letters(dead_letters, put_off)

    def _change_dead_letters(
        self, dead_letters: Sequence[DeadLetter], change: Callable[[DeadLetterRecord], None]
    ) -> list[int]:
        stale = []
        with self.transaction():
            for claimed in dead_letters:
                job = self._memory.jobs.get(claimed.id)
                dead_letter = None if job is None else copy(job.dead_letter)
                if (
                    job is None
                    or dead_letter is None
                    or dead_letter.state is None
                    or dead_letter.token != claimed.token
                ):
                    stale.append(claimed.id)
                else:
                    change(dead_letter)
                    self._change(job, dead_letter=dead_letter)
        return stale
