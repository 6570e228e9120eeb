"""Dead dead_letters in SQLite: claimed under a token like jobs; a claim is a due time in the future, so it ends by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from supervisor.stores.codes import DELIVERED, PENDING, WITHDRAWN
from supervisor.stores.records import DeadLetter, microseconds
from supervisor.stores.sqlite.claim import LENGTH
from supervisor.stores.sqlite.connection import packed
from supervisor.stores.sqlite.queries import Queries

DUE_DEAD_LETTERS = (
    f"""(select job_id from dead_letters where state = {PENDING} and due_at <= ? order by due_at limit ?)"""
)
LENGTH_SHOWN = f"{LENGTH} + coalesce((select sum(length(record)) from attempts where job_id = jobs.id), 0)"
MEASURED_AT_ONCE = 8  # to weigh attempts is to read them
CLAIM_DEAD_LETTERS = """update dead_letters set token = token + 1, tries = tries + 1, owner = ?, due_at = ?
  where job_id in (select value from json_each(?))"""
_DEAD_LETTERS = "json_each(?) as it cross join dead_letters on dead_letters.job_id = it.value"
_CLAIMED = f"""json_each(?) as it cross join dead_letters on dead_letters.job_id = json_extract(it.value, '$[0]')
  and dead_letters.token = json_extract(it.value, '$[1]') and dead_letters.state != {WITHDRAWN}"""
ACCEPT = """update dead_letters set accepted = json_extract(it.value, '$[1]'), state = json_extract(it.value, '$[2]')
  from json_each(?) as it where dead_letters.job_id = json_extract(it.value, '$[0]')"""
POSTPONE = (
    f"""update dead_letters set due_at = ?1 where state = {PENDING} and job_id in (select value from json_each(?2))"""
)


class DeadLetterQueue(Queries):
    def claim_dead_letters(self, limit: int, ttl: float) -> list[DeadLetter]:
        with self.transaction():
            now = self.now()
            ids = self.column("job_id", DUE_DEAD_LETTERS, now, limit)
            if not ids:
                return []
            ids = self.as_fit(ids, LENGTH_SHOWN, MEASURED_AT_ONCE)
            batch = packed(ids)
            self.run(CLAIM_DEAD_LETTERS, self.owner_id, now + microseconds(ttl), batch)
            rows = self.rows("job_id, token, tries, json(accepted)", _DEAD_LETTERS, batch)
            jobs = {job["id"]: job for job in self.jobs_shown(ids)}
            return [DeadLetter(id, token, tries, frozenset(accepted), jobs[id]) for id, token, tries, accepted in rows]

    def mark_accepted(self, dead_letters: Sequence[DeadLetter], sink: str, wanted: frozenset[str]) -> list[int]:
        with self.transaction():
            rows = self._claimed(dead_letters)
            changed = []
            for id, state, had in rows:
                having = {*had, sink}
                done = state == DELIVERED or wanted <= having
                changed.append((id, orjson.dumps(sorted(having)).decode(), DELIVERED if done else PENDING))
            self.run(ACCEPT, packed(changed))
            return _missing(dead_letters, rows)

    def postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> list[int]:
        with self.transaction():
            rows = self._claimed(dead_letters)
            self.run(POSTPONE, self.now() + microseconds(delay), packed([row[0] for row in rows]))
            return _missing(dead_letters, rows)

    def _claimed(self, dead_letters: Sequence[DeadLetter]) -> list[list[Any]]:
        """(id, state, accepted) of those whose claim is still the one that `letters` name."""
        return self.rows(
            "job_id, dead_letters.state, json(accepted)", _CLAIMED, packed([(it.id, it.token) for it in dead_letters])
        )


def _missing(dead_letters: Sequence[DeadLetter], rows: Sequence[Sequence[Any]]) -> list[int]:
    there = {row[0] for row in rows}
    return [dead_letter.id for dead_letter in dead_letters if dead_letter.id not in there]
