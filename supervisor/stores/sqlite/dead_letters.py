"""Dead letters in SQLite: claimed under a token like jobs; a claim is a due time in the future, so it ends by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from supervisor.stores.codes import DELIVERED, PENDING, WITHDRAWN
from supervisor.stores.protocol import Letter
from supervisor.stores.records import microseconds
from supervisor.stores.sqlite.claim import LENGTH
from supervisor.stores.sqlite.connection import packed
from supervisor.stores.sqlite.queries import Asking

DUE_LETTERS = f"""(select job_id from letters where state = {PENDING} and due_at <= ? order by due_at limit ?)"""
LENGTH_SHOWN = f"{LENGTH} + coalesce((select sum(length(record)) from attempts where job_id = jobs.id), 0)"
WEIGHED_AT_ONCE = 8  # to weigh attempts is to read them
CLAIM_LETTERS = """update letters set token = token + 1, tries = tries + 1, owner = ?, due_at = ?
  where job_id in (select value from json_each(?))"""
_LETTERS = "json_each(?) as it cross join letters on letters.job_id = it.value"
_CLAIMED = f"""json_each(?) as it cross join letters on letters.job_id = json_extract(it.value, '$[0]')
  and letters.token = json_extract(it.value, '$[1]') and letters.state != {WITHDRAWN}"""
ACCEPT = """update letters set accepted = json_extract(it.value, '$[1]'), state = json_extract(it.value, '$[2]')
  from json_each(?) as it where letters.job_id = json_extract(it.value, '$[0]')"""
POSTPONE = f"""update letters set due_at = ?1 where state = {PENDING} and job_id in (select value from json_each(?2))"""


class Letters(Asking):
    def dead_letters(self, limit: int, ttl: float) -> list[Letter]:
        with self.transaction():
            now = self.now()
            ids = self.column("job_id", DUE_LETTERS, now, limit)
            if not ids:
                return []
            ids = self.as_fit(ids, LENGTH_SHOWN, WEIGHED_AT_ONCE)
            batch = packed(ids)
            self.run(CLAIM_LETTERS, self.owner_id, now + microseconds(ttl), batch)
            rows = self.rows("job_id, token, tries, json(accepted)", _LETTERS, batch)
            jobs = {job["id"]: job for job in self.jobs_shown(ids)}
            return [Letter(id, token, tries, frozenset(accepted), jobs[id]) for id, token, tries, accepted in rows]

    def accepted(self, letters: Sequence[Letter], sink: str, wanted: frozenset[str]) -> list[int]:
        with self.transaction():
            rows = self._claimed(letters)
            changed = []
            for id, state, had in rows:
                having = {*had, sink}
                done = state == DELIVERED or wanted <= having
                changed.append((id, orjson.dumps(sorted(having)).decode(), DELIVERED if done else PENDING))
            self.run(ACCEPT, packed(changed))
            return _missing(letters, rows)

    def postpone(self, letters: Sequence[Letter], delay: float) -> list[int]:
        with self.transaction():
            rows = self._claimed(letters)
            self.run(POSTPONE, self.now() + microseconds(delay), packed([row[0] for row in rows]))
            return _missing(letters, rows)

    def _claimed(self, letters: Sequence[Letter]) -> list[list[Any]]:
        """(id, state, accepted) of those whose claim is still the one that `letters` name."""
        return self.rows(
            "job_id, letters.state, json(accepted)", _CLAIMED, packed([(it.id, it.token) for it in letters])
        )


def _missing(letters: Sequence[Letter], rows: Sequence[Sequence[Any]]) -> list[int]:
    there = {row[0] for row in rows}
    return [letter.id for letter in letters if letter.id not in there]
