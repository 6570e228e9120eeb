"""Dead letters in SQLite: claimed under a token, as jobs are. A claim is a due time in the future, so it ends by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from supervisor.stores.codes import DELIVERED, PENDING, WITHDRAWN
from supervisor.stores.fencing import NEXT_TOKEN
from supervisor.stores.records import DeadLetter, microseconds
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.ownership import Ownership
from supervisor.stores.sqlite.queries import Queries
from supervisor.stores.sqlite.queue import first_that_fit

DUE_DEAD_LETTERS = f"""
  select json_group_array(job_id) from (
    select job_id from dead_letters where state = {PENDING} and due_at <= ? order by due_at limit ?)"""
LENGTHS_SHOWN = """
  select json_group_array(coalesce(length(payload), 0) + coalesce(length(headers), 0)
    + coalesce((select sum(length(record)) from attempts where job_id = jobs.id), 0))
  from json_each(?) as it cross join jobs on jobs.id = it.value"""
MEASURED_AT_ONCE = 8
"""Few, since attempts must be read to be measured."""
CLAIM_DEAD_LETTERS = f"""
  update dead_letters set token = {NEXT_TOKEN} | ?, tries = tries + 1, owner = ?, due_at = ?
  where job_id in (select value from json_each(?))"""
CLAIMED = Select(
    "job_id, token, tries, json(accepted)",
    "from json_each(?) as it cross join dead_letters on dead_letters.job_id = it.value",
)
STILL_CLAIMED = Select(
    "job_id, dead_letters.state, json(accepted)",
    f"""from json_each(?) as it cross join dead_letters on dead_letters.job_id = json_extract(it.value, '$[0]')
      and dead_letters.token = json_extract(it.value, '$[1]') and dead_letters.state != {WITHDRAWN}""",
)
ACCEPT = """
  update dead_letters set accepted = json_extract(it.value, '$[1]'), state = json_extract(it.value, '$[2]')
  from json_each(?) as it where dead_letters.job_id = json_extract(it.value, '$[0]')"""
POSTPONE = f"""
  update dead_letters set due_at = ?1
  where state = {PENDING} and job_id in (select value from json_each(?2))"""


class DeadLetterQueue:
    def __init__(self, connection: Connection, queries: Queries, owner: Ownership) -> None:
        self._connection, self._queries, self._owner = connection, queries, owner

    def claim_dead_letters(self, limit: int, ttl: float) -> list[DeadLetter]:
        with self._connection.transaction():
            now = self._connection.now()
            ids = self._connection.json(DUE_DEAD_LETTERS, now, limit)
            if not ids:
                return []
            ids = first_that_fit(self._connection, ids, LENGTHS_SHOWN, MEASURED_AT_ONCE)
            batch = packed(ids)
            lease = (self._owner.random_part(), self._owner.id, now + microseconds(ttl))
            self._connection.run(CLAIM_DEAD_LETTERS, *lease, batch)
            jobs = {job["id"]: job for job in self._queries.jobs_shown(ids)}
            return [
                DeadLetter(id, token, tries, frozenset(accepted), jobs[id])
                for id, token, tries, accepted in self._connection.rows(CLAIMED, batch)
                if id in jobs
            ]

    def mark_accepted(self, dead_letters: Sequence[DeadLetter], sink: str, wanted: frozenset[str]) -> list[int]:
        with self._connection.transaction():
            claimed = self._still_claimed(dead_letters)
            changed = []
            for id, state, accepted in claimed:
                accepted = {*accepted, sink}
                done = state == DELIVERED or wanted <= accepted
                changed.append((id, orjson.dumps(sorted(accepted)).decode(), DELIVERED if done else PENDING))
            self._connection.run(ACCEPT, packed(changed))
            return _missing(dead_letters, claimed)

    def postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> list[int]:
        with self._connection.transaction():
            claimed = self._still_claimed(dead_letters)
            due = self._connection.now() + microseconds(delay)
            self._connection.run(POSTPONE, due, packed([id for id, _, _ in claimed]))
            return _missing(dead_letters, claimed)

    def _still_claimed(self, dead_letters: Sequence[DeadLetter]) -> list[list[Any]]:
        """Return (id, state, accepted) of the dead letters that are still claimed under their token."""
        return self._connection.rows(STILL_CLAIMED, packed([(it.id, it.token) for it in dead_letters]))


def _missing(dead_letters: Sequence[DeadLetter], claimed: Sequence[Sequence[Any]]) -> list[int]:
    ids = {id for id, *_ in claimed}
    return [dead_letter.id for dead_letter in dead_letters if dead_letter.id not in ids]
