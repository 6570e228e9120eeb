"""Dead letters in SQLite: claimed under a token, as jobs are. A claim is a due time in the future, so it ends by itself."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from supervisor.stores.codes import DELIVERED, PENDING, WITHDRAWN
from supervisor.stores.fencing import NEXT_TOKEN
from supervisor.stores.limits import MAX_TRIES
from supervisor.stores.records import DeadLetter, microseconds
from supervisor.stores.sinks import Sinks, has_work, is_complete, sinks_of, sinks_text
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.ownership import Ownership
from supervisor.stores.sqlite.queries import Queries
from supervisor.stores.sqlite.schema import SINK_LISTS

# A `+` keeps SQLite from putting the value in place of the column in the expression that the index is made of.
DUE_DEAD_LETTERS = Select(
    "due_at, job_id, ?1",
    f"""from (
      select due_at, job_id from dead_letters
      where state = {PENDING} and {SINK_LISTS} = ?2 || ?3 and due_at <= ?4 and +owed = ?2 and +accepted = ?3
      order by due_at limit ?5)""",
)
CLAIM_DEAD_LETTERS = f"""
  update dead_letters set token = {NEXT_TOKEN} | ?, tries = min(tries + 1, {MAX_TRIES}), owner = ?, due_at = ?, owed = it.owed
  from (select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as owed from json_each(?)) as it
  where job_id = it.id"""
CLAIMED = Select(
    "job_id, token, tries, accepted",
    "from json_each(?) as it cross join dead_letters on dead_letters.job_id = it.value",
)
STILL_CLAIMED = Select(
    "job_id, dead_letters.state, owed, accepted",
    f"""from json_each(?) as it cross join dead_letters on dead_letters.job_id = json_extract(it.value, '$[0]')
      and dead_letters.token = json_extract(it.value, '$[1]') and dead_letters.state != {WITHDRAWN}""",
)
ACCEPT = """
  update dead_letters set accepted = json_extract(it.value, '$[1]'), state = json_extract(it.value, '$[2]'),
    due_at = coalesce(json_extract(it.value, '$[3]'), due_at)
  from json_each(?) as it where dead_letters.job_id = json_extract(it.value, '$[0]')"""
POSTPONE = f"""
  update dead_letters set due_at = ?1
  where state = {PENDING} and job_id in (select value from json_each(?2))"""


class DeadLetterQueue:
    def __init__(self, connection: Connection, queries: Queries, owner: Ownership) -> None:
        self._connection, self._queries, self._owner = connection, queries, owner

    def claim_dead_letters(self, limit: int, ttl: float, sinks: Sinks | None = None) -> list[DeadLetter]:
        with self._connection.transaction():
            now = self._connection.now()
            owed = self._due(limit, now, self._owner.sinks if sinks is None else sinks)
            if not owed:
                return []
            ids = self._queries.first_that_fit(list(owed), self._connection.limits.claim_characters)
            lease = (self._owner.random_part(), self._owner.id, now + microseconds(ttl))
            self._connection.run(CLAIM_DEAD_LETTERS, *lease, packed([(id, owed[id]) for id in ids]))
            jobs = {job["id"]: job for job in self._queries.jobs_shown(ids)}
            return [
                DeadLetter(id, token, tries, sinks_of(accepted), jobs[id])
                for id, token, tries, accepted in self._connection.rows(CLAIMED, packed(ids))
                if id in jobs
            ]

    def _due(self, limit: int, now: int, sinks: Sinks) -> dict[int, str]:
        """The ids of the first that are due and wait for one of `sinks`, each with the sinks that it is owed to from now on."""
        due = []
        for owed, accepted, _ in self._queries.pending(1):
            its = sinks_of(owed)
            if has_work(its, sinks_of(accepted), sinks):
                after = sinks_text(its | self._owner.sinks)
                due += self._connection.rows(DUE_DEAD_LETTERS, after, owed, accepted, now, limit)
        return {id: after for _, id, after in sorted(due, key=itemgetter(0, 1))[:limit]}

    def mark_accepted(self, dead_letters: Sequence[DeadLetter], sink: str) -> list[int]:
        with self._connection.transaction():
            claimed = self._still_claimed(dead_letters)
            changed = []
            for id, state, owed, accepted in claimed:
                sinks = sinks_of(accepted) | {sink}
                done = state == DELIVERED or is_complete(sinks_of(owed), sinks)
                due = self._connection.now() if self._owner.sinks <= sinks else None
                changed.append((id, sinks_text(sinks), DELIVERED if done else PENDING, due))
            self._connection.run(ACCEPT, packed(changed))
            return _missing(dead_letters, claimed)

    def postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> list[int]:
        with self._connection.transaction():
            claimed = self._still_claimed(dead_letters)
            due = self._connection.now() + microseconds(delay)
            self._connection.run(POSTPONE, due, packed([id for id, *_ in claimed]))
            return _missing(dead_letters, claimed)

    def _still_claimed(self, dead_letters: Sequence[DeadLetter]) -> list[list[Any]]:
        """Return (id, state, owed, accepted) of the dead letters that are still claimed under their token."""
        return self._connection.rows(STILL_CLAIMED, packed([(it.id, it.token) for it in dead_letters]))


def _missing(dead_letters: Sequence[DeadLetter], claimed: Sequence[Sequence[Any]]) -> list[int]:
    ids = {id for id, *_ in claimed}
    return [dead_letter.id for dead_letter in dead_letters if dead_letter.id not in ids]
