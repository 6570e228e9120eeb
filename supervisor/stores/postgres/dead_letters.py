"""Dead dead_letters in PostgreSQL: claimed under a token like jobs; a claim is a due time in the future, so it ends by itself."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from supervisor.errors import RowsLocked
from supervisor.stores.codes import DELIVERED, PENDING, WITHDRAWN
from supervisor.stores.postgres.claim import LENGTH, LENGTHS, NOW
from supervisor.stores.postgres.connection import Row, array, packed
from supervisor.stores.postgres.queries import Queries
from supervisor.stores.records import DeadLetter, microseconds

DUE_DEAD_LETTERS = f"""select job_id from {{s}}.dead_letters where state = {PENDING} and due_at <= {NOW}
  order by due_at, job_id limit $1 for no key update skip locked"""
LENGTHS_SHOWN = LENGTHS.replace(
    LENGTH,
    f"{LENGTH} + coalesce((select sum(octet_length(record)) from {{s}}.attempts where job_id = jobs.id), 0)::bigint",
)
CLAIM_DEAD_LETTERS = f"""update {{s}}.dead_letters set token = token + 1, tries = tries + 1, owner = $1, due_at = {NOW} + $2
  where job_id = any($3::bigint[]) returning job_id, token, tries, accepted"""
CLAIMED = f"""select job_id, dead_letters.state, accepted from unnest($1::bigint[], $2::bigint[]) as it(id, token)
  join {{s}}.dead_letters on job_id = it.id and dead_letters.token = it.token and dead_letters.state != {WITHDRAWN}
  order by job_id for no key update of dead_letters"""
ACCEPT = """update {s}.dead_letters set accepted = it.accepted, state = it.state
  from json_to_recordset($1::json) as it(id bigint, accepted text, state smallint) where dead_letters.job_id = it.id"""
POSTPONE = (
    f"""update {{s}}.dead_letters set due_at = {NOW} + $1 where state = {PENDING} and job_id = any($2::bigint[])"""
)


class DeadLetterQueue(Queries):
    def claim_dead_letters(self, limit: int, ttl: float) -> list[DeadLetter]:
        with self.transaction():
            ids = self.column(DUE_DEAD_LETTERS, limit)
            if not ids:
                return []
            ids = self.as_fit(ids, LENGTHS_SHOWN)
            claimed = {
                row[0]: row for row in self.rows(CLAIM_DEAD_LETTERS, self.owner_id, microseconds(ttl), array(ids))
            }
            jobs = {job["id"]: job for job in self.jobs_shown(ids)}
            return [_dead_letter(claimed[id], jobs[id]) for id in ids if id in jobs]

    def mark_accepted(self, dead_letters: Sequence[DeadLetter], sink: str, wanted: frozenset[str]) -> list[int]:
        with self.transaction():
            locked = self._to_pass_by(dead_letters)
            if not locked:
                return self._accepted(dead_letters, sink, wanted)
        raise RowsLocked(f"{self.url}: rows are locked by another session", frozenset(locked))

    def _accepted(self, dead_letters: Sequence[DeadLetter], sink: str, wanted: frozenset[str]) -> list[int]:
        with self.transaction():
            rows = self._claimed(dead_letters)
            changed = []
            for id, state, had in rows:
                having = {*orjson.loads(had), sink}
                done = state == DELIVERED or wanted <= having
                accepted = orjson.dumps(sorted(having)).decode()
                changed.append({"id": id, "accepted": accepted, "state": DELIVERED if done else PENDING})
            self.later(ACCEPT, packed(changed))
            return _missing(dead_letters, rows)

    def postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> list[int]:
        """Of those that somebody has locked the claim ends by itself."""
        with self.transaction():
            locked = self._to_pass_by(dead_letters)
            dead_letters = [dead_letter for dead_letter in dead_letters if dead_letter.id not in locked]
            rows = self._claimed(dead_letters)
            self.later(POSTPONE, microseconds(delay), array(row[0] for row in rows))
            return _missing(dead_letters, rows)

    def _to_pass_by(self, dead_letters: Sequence[DeadLetter]) -> set[int]:
        return self.to_pass_by("dead_letters", "job_id", [dead_letter.id for dead_letter in dead_letters])

    def _claimed(self, dead_letters: Sequence[DeadLetter]) -> list[Row]:
        """(id, state, accepted) of those whose claim is still the one that `letters` name."""
        return self.rows(CLAIMED, array(it.id for it in dead_letters), array(it.token for it in dead_letters))


def _dead_letter(claimed: Row, job: dict[str, object]) -> DeadLetter:
    id, token, tries, accepted = claimed
    return DeadLetter(id, token, tries, frozenset(orjson.loads(accepted)), job)


def _missing(dead_letters: Sequence[DeadLetter], rows: Sequence[Row]) -> list[int]:
    there = {row[0] for row in rows}
    return [dead_letter.id for dead_letter in dead_letters if dead_letter.id not in there]
