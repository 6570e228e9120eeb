"""The parents and children of a job in SQLite, as people see them, and the states of many jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from supervisor.stores.codes import STATES
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.workflows import MAX_SHOWN, NO_RELATIVES, relatives

HAVE_ANY = """
  select json_group_array(it.value) from json_each(?) as it
  where exists (select 1 from parents where child = it.value) or exists (select 1 from parents where parents.parent = it.value)"""
PARENTS = Select(
    "parent, handler, state, link",
    """from (
      select parents.parent, jobs.handler, jobs.state, link from parents left join jobs on jobs.id = parents.parent
      where child = ?1 order by place limit ?2)""",
)
CHILDREN = Select(
    "child, handler, state, link",
    """from (
      select parents.child, jobs.handler, jobs.state, link from parents cross join jobs on jobs.id = parents.child
      where parent = ?1 order by child limit ?2)""",
)
COUNTED = Select(
    "state, n",
    """from (
      select state, count(*) as n from json_each(?) as it left join jobs on jobs.id = it.value group by state)""",
)


def with_relatives(connection: Connection, jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs with their `parents` and `children`."""
    ids = packed([job["id"] for job in jobs])
    found = {
        id: relatives(connection.rows(PARENTS, id, MAX_SHOWN), connection.rows(CHILDREN, id, MAX_SHOWN))
        for id in connection.json(HAVE_ANY, ids)
    }
    return [job | found.get(job["id"], NO_RELATIVES) for job in jobs]


def counts_by_state(connection: Connection, ids: Sequence[int]) -> dict[str | None, int]:
    """Return how many of these jobs are in each state, by its name; None is for jobs that do not exist."""
    rows = connection.rows(COUNTED, packed(list(ids)))
    return {None if state is None else STATES[state].value: n for state, n in rows}
