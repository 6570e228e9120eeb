"""Dead letters in PostgreSQL: claimed under a token, as jobs are. A claim is a due time in the future, so it ends by itself."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.errors import RowsLocked
from supervisor.stores.codes import DELIVERED, PENDING, WITHDRAWN
from supervisor.stores.fencing import NEXT_TOKEN
from supervisor.stores.limits import MAX_TRIES
from supervisor.stores.postgres.connection import NOW, Connection, Row, array, packed
from supervisor.stores.postgres.ownership import Ownership
from supervisor.stores.postgres.queries import Queries
from supervisor.stores.postgres.row_locks import DEAD_LETTERS, RowLocks
from supervisor.stores.postgres.schema import SINK_LISTS
from supervisor.stores.records import DeadLetter, microseconds
from supervisor.stores.sinks import Sinks, has_work, is_complete, sinks_of, sinks_text

# It claims the first of up to $1 dead letters whose jobs have at most $2 bytes of texts and attempts together, at least one.
# Dead letters with the lists of sinks $6 and $7 are owed to $8 from now on.
CLAIM_DEAD_LETTERS = f"""
  with due as materialized (
    select job_id, due_at, owed_now from unnest($6::text[], $7::text[], $8::text[]) as lists(owed, accepted, owed_now)
    cross join lateral (
      select job_id, due_at from {{s}}.dead_letters
      where state = {PENDING} and {SINK_LISTS} = hashtextextended(lists.owed || lists.accepted, 0) and due_at <= {NOW}
        and owed = lists.owed and accepted = lists.accepted
      order by due_at, job_id limit $1
      for no key update skip locked) as its
    order by due_at, job_id limit $1),
  measured as (
    select job_id, owed_now, row_number() over (order by due.due_at, job_id) as place,
      coalesce(octet_length(payload), 0) + coalesce(octet_length(headers), 0)
        + coalesce((select sum(octet_length(record)) from {{s}}.attempts where attempts.job_id = jobs.id), 0)
        + coalesce((select octet_length(log) from {{s}}.reports where reports.job_id = jobs.id), 0) as bytes
    from due left join {{s}}.jobs on jobs.id = job_id),
  fit as (
    select * from (select *, sum(bytes) over (order by place) as total from measured) as it
    where total <= $2 or place = 1),
  claimed as (
    update {{s}}.dead_letters set token = {NEXT_TOKEN} | $5, tries = least(tries + 1, {MAX_TRIES}), owner = $3,
      due_at = {NOW} + $4, owed = owed_now
    from fit where dead_letters.job_id = fit.job_id
    returning fit.job_id, token, tries, accepted, place)
  select job_id, token, tries, accepted from claimed order by place"""
STILL_CLAIMED = f"""
  select job_id, dead_letters.state, owed, accepted from unnest($1::bigint[], $2::bigint[]) as it(id, token)
  join {{s}}.dead_letters on job_id = it.id and dead_letters.token = it.token and dead_letters.state != {WITHDRAWN}
  order by job_id for no key update of dead_letters"""
ACCEPT = f"""
  update {{s}}.dead_letters set accepted = it.accepted, state = it.state,
    due_at = case when it.ends_claim then {NOW} else due_at end
  from json_to_recordset($1::json) as it(id bigint, accepted text, state smallint, ends_claim bool) where dead_letters.job_id = it.id"""
POSTPONE = f"""
  update {{s}}.dead_letters set due_at = {NOW} + $1 where state = {PENDING} and job_id = any($2::bigint[])"""


class DeadLetterQueue:
    def __init__(
        self, connection: Connection, locks: RowLocks, queries: Queries, owner: Ownership, claim_bytes: int
    ) -> None:
        self._connection, self._locks, self._queries, self._owner = connection, locks, queries, owner
        self._claim_bytes = claim_bytes

    def claim_dead_letters(self, limit: int, ttl: float, sinks: Sinks | None = None) -> list[DeadLetter]:
        with self._connection.transaction():
            lists = self._with_work(self._owner.sinks if sinks is None else sinks)
            if not lists:
                return []
            lease = (self._owner.id, microseconds(ttl), self._owner.random_part())
            owed, accepted, owed_now = map(list, zip(*lists, strict=True))
            claimed = self._connection.rows(
                CLAIM_DEAD_LETTERS, limit, self._claim_bytes, *lease, owed, accepted, owed_now
            )
            jobs = {job["id"]: job for job in self._queries.jobs_shown([row[0] for row in claimed])} if claimed else {}
            return [
                DeadLetter(id, token, tries, sinks_of(accepted), jobs[id])
                for id, token, tries, accepted in claimed
                if id in jobs
            ]

    def _with_work(self, sinks: Sinks) -> list[tuple[str, str, str]]:
        """(owed, accepted, owed from now on) of dead letters that wait for one of `sinks`."""
        return [
            (owed, accepted, sinks_text(sinks_of(owed) | self._owner.sinks))
            for owed, accepted, _ in self._queries.pending(1)
            if has_work(sinks_of(owed), sinks_of(accepted), sinks)
        ]

    def mark_accepted(self, dead_letters: Sequence[DeadLetter], sink: str) -> list[int]:
        with self._connection.transaction():
            locked = self._locked(dead_letters)
            if not locked:
                return self._accept(dead_letters, sink)
        raise RowsLocked(f"{self._connection.url}: rows are locked by another session", frozenset(locked))

    def postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> list[int]:
        """Leave out dead letters that are locked: their claims end by themselves."""
        with self._connection.transaction():
            locked = self._locked(dead_letters)
            free = [dead_letter for dead_letter in dead_letters if dead_letter.id not in locked]
            claimed = self._still_claimed(free)
            self._connection.later(POSTPONE, microseconds(delay), array(row[0] for row in claimed))
            return _missing(free, claimed)

    def _accept(self, dead_letters: Sequence[DeadLetter], sink: str) -> list[int]:
        claimed = self._still_claimed(dead_letters)
        changed = []
        for id, state, owed, accepted in claimed:
            sinks = sinks_of(accepted) | {sink}
            done = state == DELIVERED or is_complete(sinks_of(owed), sinks)
            change = {"id": id, "accepted": sinks_text(sinks), "state": DELIVERED if done else PENDING}
            changed.append(change | {"ends_claim": self._owner.sinks <= sinks})
        self._connection.later(ACCEPT, packed(changed))
        return _missing(dead_letters, claimed)

    def _locked(self, dead_letters: Sequence[DeadLetter]) -> set[int]:
        return self._locks.to_skip(DEAD_LETTERS, [dead_letter.id for dead_letter in dead_letters])

    def _still_claimed(self, dead_letters: Sequence[DeadLetter]) -> list[Row]:
        """Return (id, state, owed, accepted) of the dead letters that are still claimed under their token."""
        return self._connection.rows(
            STILL_CLAIMED, array(it.id for it in dead_letters), array(it.token for it in dead_letters)
        )


def _missing(dead_letters: Sequence[DeadLetter], claimed: Sequence[Row]) -> list[int]:
    ids = {row[0] for row in claimed}
    return [dead_letter.id for dead_letter in dead_letters if dead_letter.id not in ids]
