"""Dead letters in PostgreSQL: claimed under a token like jobs; a claim is a due time in the future, so it ends by itself."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from supervisor.stores.codes import DELIVERED, PENDING, WITHDRAWN
from supervisor.stores.postgres.claim import LENGTH, LENGTHS, NOW
from supervisor.stores.postgres.connection import Row, array, packed
from supervisor.stores.postgres.queries import Asking
from supervisor.stores.protocol import Letter, RowsLocked
from supervisor.stores.records import microseconds

DUE_LETTERS = f"""select job_id from {{s}}.letters where state = {PENDING} and due_at <= {NOW}
  order by due_at, job_id limit $1 for no key update skip locked"""
LENGTHS_SHOWN = LENGTHS.replace(
    LENGTH,
    f"{LENGTH} + coalesce((select sum(octet_length(record)) from {{s}}.attempts where job_id = jobs.id), 0)::bigint",
)
CLAIM_LETTERS = f"""update {{s}}.letters set token = token + 1, tries = tries + 1, owner = $1, due_at = {NOW} + $2
  where job_id = any($3::bigint[]) returning job_id, token, tries, accepted"""
CLAIMED = f"""select job_id, letters.state, accepted from unnest($1::bigint[], $2::bigint[]) as it(id, token)
  join {{s}}.letters on job_id = it.id and letters.token = it.token and letters.state != {WITHDRAWN}
  order by job_id for no key update of letters"""
ACCEPT = """update {s}.letters set accepted = it.accepted, state = it.state
  from json_to_recordset($1::json) as it(id bigint, accepted text, state smallint) where letters.job_id = it.id"""
POSTPONE = f"""update {{s}}.letters set due_at = {NOW} + $1 where state = {PENDING} and job_id = any($2::bigint[])"""


class Letters(Asking):
    def dead_letters(self, limit: int, ttl: float) -> list[Letter]:
        with self.transaction():
            ids = self.column(DUE_LETTERS, limit)
            if not ids:
                return []
            ids = self.as_fit(ids, LENGTHS_SHOWN)
            claimed = {row[0]: row for row in self.rows(CLAIM_LETTERS, self.owner_id, microseconds(ttl), array(ids))}
            jobs = {job["id"]: job for job in self.jobs_shown(ids)}
            return [_letter(claimed[id], jobs[id]) for id in ids if id in jobs]

    def accepted(self, letters: Sequence[Letter], sink: str, wanted: frozenset[str]) -> list[int]:
        with self.transaction():
            locked = self._to_pass_by(letters)
            if not locked:
                return self._accepted(letters, sink, wanted)
        raise RowsLocked(f"{self.url}: rows are locked by another session", frozenset(locked))

    def _accepted(self, letters: Sequence[Letter], sink: str, wanted: frozenset[str]) -> list[int]:
        with self.transaction():
            rows = self._claimed(letters)
            changed = []
            for id, state, had in rows:
                having = {*orjson.loads(had), sink}
                done = state == DELIVERED or wanted <= having
                accepted = orjson.dumps(sorted(having)).decode()
                changed.append({"id": id, "accepted": accepted, "state": DELIVERED if done else PENDING})
            self.later(ACCEPT, packed(changed))
            return _missing(letters, rows)

    def postpone(self, letters: Sequence[Letter], delay: float) -> list[int]:
        """Of those that somebody has locked the claim ends by itself."""
        with self.transaction():
            locked = self._to_pass_by(letters)
            letters = [letter for letter in letters if letter.id not in locked]
            rows = self._claimed(letters)
            self.later(POSTPONE, microseconds(delay), array(row[0] for row in rows))
            return _missing(letters, rows)

    def _to_pass_by(self, letters: Sequence[Letter]) -> set[int]:
        return self.to_pass_by("letters", "job_id", [letter.id for letter in letters])

    def _claimed(self, letters: Sequence[Letter]) -> list[Row]:
        """(id, state, accepted) of those whose claim is still the one that `letters` name."""
        return self.rows(CLAIMED, array(it.id for it in letters), array(it.token for it in letters))


def _letter(claimed: Row, job: dict[str, object]) -> Letter:
    id, token, tries, accepted = claimed
    return Letter(id, token, tries, frozenset(orjson.loads(accepted)), job)


def _missing(letters: Sequence[Letter], rows: Sequence[Row]) -> list[int]:
    there = {row[0] for row in rows}
    return [letter.id for letter in letters if letter.id not in there]
