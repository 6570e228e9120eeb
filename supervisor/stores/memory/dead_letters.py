"""Dead letters in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from supervisor.stores.memory.owners import Owners
from supervisor.stores.memory.state import KeptJob, KeptLetter
from supervisor.stores.protocol import Letter
from supervisor.stores.records import microseconds


class Letters(Owners):
    def dead_letters(self, limit: int, ttl: float) -> list[Letter]:
        with self.transaction():
            now = self._now()
            due = [job for job in self._pending() if job.letter is not None and job.letter.due_at <= now]
            due.sort(key=lambda job: job.letter.due_at if job.letter else 0)
            return [self._claim_letter(job, now + microseconds(ttl)) for job in due[:limit]]

    def _pending(self) -> list[KeptJob]:
        return [job for job in self._shelf.jobs.values() if job.letter_state == "pending"]

    def _claim_letter(self, job: KeptJob, until: int) -> Letter:
        letter = copy(job.letter)
        assert letter is not None
        letter.token, letter.tries, letter.due_at = letter.token + 1, letter.tries + 1, until
        self._change(job, letter=letter)
        return Letter(job.id, letter.token, letter.tries, letter.accepted, job.shown())

    def accepted(self, letters: Sequence[Letter], sink: str, wanted: frozenset[str]) -> list[int]:
        def accept(letter: KeptLetter) -> None:
            letter.accepted |= {sink}
            if wanted <= letter.accepted:
                letter.state = "delivered"

        return self._change_letters(letters, accept)

    def postpone(self, letters: Sequence[Letter], delay: float) -> list[int]:
        def put_off(letter: KeptLetter) -> None:
            letter.due_at = self._now() + microseconds(delay)

        return self._change_letters(letters, put_off)

    def _change_letters(self, letters: Sequence[Letter], change: Callable[[KeptLetter], None]) -> list[int]:
        stale = []
        with self.transaction():
            for claimed in letters:
                job = self._shelf.jobs.get(claimed.id)
                letter = None if job is None else copy(job.letter)
                if job is None or letter is None or letter.state is None or letter.token != claimed.token:
                    stale.append(claimed.id)
                else:
                    change(letter)
                    self._change(job, letter=letter)
        return stale
