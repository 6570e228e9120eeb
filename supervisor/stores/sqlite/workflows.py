"""Jobs that wait for their parents, in SQLite: see `supervisor.stores.workflows`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from supervisor.errors import NoSuchParent, ParentsInCircle
from supervisor.stores.codes import BLOCKED, CANCELLED, STATES, SUCCEEDED
from supervisor.stores.extras import Extras
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.unique import UniqueKeys
from supervisor.stores.workflows import (
    CANCEL,
    CANCELLED_BY,
    DONE,
    IGNORED,
    MAX_AT_ONCE,
    ON_FAILED,
    RUN,
    WAIT,
    WAITS,
    how_it_ended,
    no_such_parent,
    parent_failed,
    waits_for_itself,
)

PARENT_TABLES = (
    f"""create table parents(child int not null, parent int not null, place int not null, on_failed int not null,
      link int not null default {WAITS}, primary key(child, parent)) without rowid""",
    "create index children on parents(parent)",
    f"create index open_links on parents(child) where link = {WAITS}",
)

MISSING = """
  select json_group_array(it.value) from json_each(?) as it where not exists (select 1 from jobs where id = it.value)"""
LINK = """
  insert into parents(child, parent, place, on_failed)
  select ?1, it.value, it.key, ?2 from json_each(?3) as it where true on conflict do nothing"""
UNLINK = "delete from parents where child = ?"
IS_IN_CIRCLE = """
  with recursive found(id) as (
    select parent from parents where child = ?1
    union select parents.parent from found cross join parents on parents.child = found.id)
  select case when exists(select 1 from parents where parent = ?1) then exists(select 1 from found where id = ?1) end"""
ENDED = f"""
  select json_group_array(it.value) from json_each(?) as it
  where (select state from jobs where id = it.value) >= {SUCCEEDED}"""
WAIT_NO_LONGER = f"update parents set link = {DONE} where link = {WAITS} and child in (select value from json_each(?))"

# `+link` keeps a statement that finds the children of a parent from the index of all open links.
_WAITING = f"+parents.link = {WAITS} and (select state from jobs where id = parents.child) = {BLOCKED}"
# The children, and their children, that are to be cancelled since the jobs ?1 have ended without success, each with its parent and the state of
# that. If these are deleted (?2), children can't wait for them any longer either.
TO_CANCEL = Select(
    "child, parent, (select state from jobs where id = parent)",
    f"""from (
      with recursive found(child, parent) as (
        select parents.child, parents.parent from json_each(?1) as it cross join parents on parents.parent = it.value
        where {_WAITING} and (on_failed = {CANCEL} or (?2 and on_failed = {WAIT}))
          and (select state from jobs where id = it.value) is not {SUCCEEDED}
        union
        select parents.child, parents.parent from found cross join parents on parents.parent = found.child
        where {_WAITING} and on_failed = {CANCEL}
        limit {MAX_AT_ONCE})
      select child, min(parent) as parent from found group by child)""",
)
PLACES = Select("queue, tier", "from json_each(?) as it cross join jobs on jobs.id = it.value")
MAKE_CANCELLED = f"""
  update jobs set state = {CANCELLED}, token = token + 1, finished_at = ?1, owner = null, lease_until = null
  where id in (select value from json_each(?2))"""
# The batch has [child, parent, error] of each cancelled job.
NOTE_CAUSE = f"""
  update parents set link = {CANCELLED_BY}
  from (select json_extract(value, '$[0]') as child, json_extract(value, '$[1]') as parent from json_each(?)) as it
  where parents.child = it.child and parents.parent = it.parent"""
ADD_ERRORS = """
  insert into attempts(job_id, record)
  select json_extract(value, '$[0]'), json_extract(value, '$[2]') from json_each(?)"""

# The children of the jobs ?1 for which these are done.
_IS_DONE = f"(on_failed = {RUN} or (select state from jobs where id = parents.parent) is {SUCCEEDED})"
PASSED = f"""
  select json_group_array(child) from (
    select distinct child from json_each(?1) as it cross join parents on parents.parent = it.value
    where {_WAITING} and {_IS_DONE} limit {MAX_AT_ONCE})"""
PASS = f"""
  update parents set link = {DONE}
  where child in (select value from json_each(?2)) and parent in (select value from json_each(?1)) and link = {WAITS}
    and {_IS_DONE}"""
FREE = f"""
  select json_group_array(it.value) from json_each(?) as it
  where not exists (select 1 from parents where link = {WAITS} and child = it.value)
    and (select state from jobs where id = it.value) = {BLOCKED}"""

# The jobs that were cancelled because of the jobs ?1, or because of another one of these.
TO_RESTORE = f"""
  with recursive found(id) as (
    select child from json_each(?1) as it cross join parents on parents.parent = it.value
    where link = {CANCELLED_BY} and (select state from jobs where id = parents.child) = {CANCELLED}
    union
    select child from found cross join parents on parents.parent = found.id
    where link = {CANCELLED_BY} and (select state from jobs where id = parents.child) = {CANCELLED})
  select json_group_array(id) from found"""
RESTORE = f"""
  update jobs set state = {BLOCKED}, finished_at = null where id in (select value from json_each(?))"""
WAIT_FOR_UNDONE = f"""
  update parents set link = iif((select state from jobs where id = parent) != {SUCCEEDED}, {WAITS}, {DONE})
  where child in (select value from json_each(?)) and link != {IGNORED}"""
ENDED_PARENTS = f"""
  select json_group_array(parent) from (
    select distinct parents.parent from json_each(?) as it cross join parents on parents.child = it.value
    where link = {WAITS} and (select state from jobs where id = parents.parent) > {SUCCEEDED})"""
IGNORE_NO_LONGER = (
    f"update parents set link = {DONE} where link = {IGNORED} and parent in (select value from json_each(?))"
)
# Children that still wait for others wait for a parent that runs again too.
WAIT_AGAIN = f"""
  update parents set link = {WAITS}
  where parent in (select value from json_each(?)) and link = {DONE}
    and (select state from jobs where id = child) = {BLOCKED}
    and exists (select 1 from parents as other where other.link = {WAITS} and other.child = parents.child)"""
# A job that is run again waits for those of its parents that are going to run.
WAIT_FOR_UNFINISHED = f"""
  update parents set link = coalesce((
    select case when state < {SUCCEEDED} then {WAITS} when state > {SUCCEEDED} then {IGNORED} end from jobs where id = parents.parent), {DONE})
  where child in (select value from json_each(?))"""
STILL_BLOCKED = f"""
  select json_group_array(it.value) from json_each(?) as it where (select state from jobs where id = it.value) = {BLOCKED}"""
STILL_WAITING = f"""
  select json_group_array(it.value) from json_each(?) as it
  where exists (select 1 from parents where link = {WAITS} and child = it.value)"""

# Other programs may have ended or deleted a parent, or a child, by plain SQL; and a transaction leaves out what is too much for it.
LOST = f"""
  select json_group_array(parent) from (
    select distinct parent from parents where {_WAITING} and (
      (select state from jobs where id = parent) is null
      or ((select state from jobs where id = parent) >= {SUCCEEDED} and (on_failed != {WAIT} or {_IS_DONE})))
    limit {MAX_AT_ONCE})"""


class Workflows:
    """The links between children and parents. All calls are made inside the transaction that changes the jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._unique = connection, UniqueKeys(connection)

    def link(self, child: int, extras: Extras) -> list[int]:
        """Let this job, which is new or replaced, and blocked, wait for its parents. Return the jobs that go on: itself, if all have
        ended."""
        parents = packed(extras.after)
        if missing := self._connection.json(MISSING, parents):
            raise NoSuchParent(no_such_parent(missing[0], self._unique.key_of(missing[0])))
        self._connection.run(LINK, child, ON_FAILED[extras.on_parent_failed], parents)
        if self._connection.value(IS_IN_CIRCLE, child):  # no new job is
            raise ParentsInCircle(waits_for_itself(child))
        ended = self._connection.json(ENDED, parents)
        return self.resolve(ended) if ended else []

    def unlink(self, child: int) -> None:
        """Let this job, which is replaced, wait for none of its parents any more."""
        self._connection.run(UNLINK, child)

    def ended(self, ids: Sequence[int], deleted: bool = False) -> list[int]:
        """Return the jobs that go on now that these have ended, or are `deleted`. Cancel those that can't."""
        self._connection.run(WAIT_NO_LONGER, packed(ids))
        return self.resolve(ids, deleted)

    def resolve(self, ids: Sequence[int], deleted: bool = False) -> list[int]:
        """Cancel the children of these jobs that can't go on, with their own. Return those that wait no longer."""
        ended = packed([*ids, *self._cancel(ids, deleted)])
        passed = packed(self._connection.json(PASSED, ended))
        self._connection.run(PASS, ended, passed)
        free: list[int] = self._connection.json(FREE, passed)
        return free

    def _cancel(self, ids: Sequence[int], deleted: bool) -> list[int]:
        found = self._connection.rows(TO_CANCEL, packed(ids), deleted)
        if not found:
            return []
        now, roots = self._connection.now(), set(ids)
        children = packed([child for child, _, _ in found])
        for (queue, tier), n in Counter(
            (queue, tier) for queue, tier in self._connection.rows(PLACES, children)
        ).items():
            self._connection.counts.add(BLOCKED, queue, tier, -n)
            self._connection.counts.add(CANCELLED, queue, tier, n)
        self._connection.run(MAKE_CANCELLED, now, children)
        self._connection.run(WAIT_NO_LONGER, children)
        causes = [
            (child, parent, packed(parent_failed(parent, _how(state, deleted and parent in roots), now)))
            for child, parent, state in found
        ]
        self._connection.run(NOTE_CAUSE, packed(causes))
        self._connection.run(ADD_ERRORS, packed(causes))
        return [child for child, _, _ in found]

    def run_again(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Let the children of these jobs, which are ready again, wait for them again. Return those of these jobs that have to wait for
        their own parents, and the jobs that go on."""
        batch = packed(ids)
        self._wait_again(batch)
        free = self._restore(ids)
        self._connection.run(WAIT_FOR_UNFINISHED, batch)
        waiting: list[int] = self._connection.json(STILL_WAITING, batch)
        return waiting, free

    def _wait_again(self, batch: str) -> None:
        """Let children that are still blocked wait for these jobs, which are going to run again."""
        self._connection.run(IGNORE_NO_LONGER, batch)
        self._connection.run(WAIT_AGAIN, batch)

    def _restore(self, ids: Sequence[int]) -> list[int]:
        """Let the jobs wait again that were cancelled because of these. A job whose unique key another one has stays cancelled, and so do
        its own children. Return the jobs that go on."""
        found = self._connection.json(TO_RESTORE, packed(ids))
        refused = self._unique.retake(found, self._connection.now()) if found else {}
        restored = [id for id in found if id not in refused]
        if not restored:
            return []
        batch = packed(restored)
        for (queue, tier), n in Counter((queue, tier) for queue, tier in self._connection.rows(PLACES, batch)).items():
            self._connection.counts.add(CANCELLED, queue, tier, -n)
            self._connection.counts.add(BLOCKED, queue, tier, n)
        self._connection.run(RESTORE, batch)
        self._connection.run(WAIT_FOR_UNDONE, batch)
        free = self.resolve(self._connection.json(ENDED_PARENTS, batch))
        self._wait_again(packed(self._connection.json(STILL_BLOCKED, batch)))
        return free

    def repair(self) -> list[int]:
        """Return the jobs that go on: they have waited in vain."""
        free: list[int] = []
        if lost := self._connection.json(LOST):
            gone = self._connection.json(MISSING, packed(lost))
            free += self.resolve(gone, deleted=True)
            free += self.resolve(lost)
        return free


def _how(state: int | None, deleted: bool) -> str:
    return how_it_ended(None if state is None else STATES[state], deleted)
