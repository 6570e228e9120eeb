"""Dead letters in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.other_records import DeadLetterRecord
from supervisor.stores.memory.ownership import Ownership
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.records import DeadLetter, microseconds
from supervisor.stores.sinks import Sinks, has_work, is_complete


class DeadLetterQueue:
    def __init__(self, state: MemoryState, owner: Ownership) -> None:
        self._state, self._owner = state, owner

    def claim_dead_letters(self, limit: int, ttl: float, sinks: Sinks | None = None) -> list[DeadLetter]:
        sinks = self._owner.sinks if sinks is None else sinks
        with self._state.transaction():
            now = self._state.now()
            pending = [(job.dead_letter, job.id) for job in self._state.pending_dead_letters() if job.dead_letter]
            due = sorted(
                (record.due_at, id)
                for record, id in pending
                if record.due_at <= now and has_work(record.owed, record.accepted, sinks)
            )
            return [self._claim(self._state.jobs[id], now + microseconds(ttl)) for _, id in due[:limit]]

    def _claim(self, job: JobRecord, until: int) -> DeadLetter:
        record = copy(job.dead_letter)
        assert record is not None
        record.token, record.tries, record.due_at = record.token + 1, record.tries + 1, until
        record.owed |= self._owner.sinks
        self._state.change(job, dead_letter=record)
        return DeadLetter(job.id, record.token, record.tries, record.accepted, self._state.shown(job))

    def mark_accepted(self, dead_letters: Sequence[DeadLetter], sink: str) -> list[int]:
        def accept(record: DeadLetterRecord) -> None:
            record.accepted |= {sink}
            if is_complete(record.owed, record.accepted):
                record.state = "delivered"
            if self._owner.sinks <= record.accepted:
                record.due_at = self._state.now()

        return self._change(dead_letters, accept)

    def postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> list[int]:
        def put_off(record: DeadLetterRecord) -> None:
            record.due_at = self._state.now() + microseconds(delay)

        return self._change(dead_letters, put_off)

    def _change(self, dead_letters: Sequence[DeadLetter], change: Callable[[DeadLetterRecord], None]) -> list[int]:
        stale = []
        with self._state.transaction():
            for claimed in dead_letters:
                job = self._state.jobs.get(claimed.id)
                record = None if job is None else copy(job.dead_letter)
                if job is None or record is None or record.state is None or record.token != claimed.token:
                    stale.append(claimed.id)
                else:
                    change(record)
                    self._state.change(job, dead_letter=record)
        return stale
