"""The parents and children of a job in PostgreSQL, as people see them, and the states of many jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from supervisor.stores.codes import STATES
from supervisor.stores.postgres.connection import Connection, array
from supervisor.stores.workflows import MAX_SHOWN, NO_RELATIVES, relatives

HAVE_ANY = """
  select it.id from unnest($1::bigint[]) as it(id)
  where exists (select from {s}.parents where child = it.id) or exists (select from {s}.parents where parent = it.id)"""
PARENTS = """
  select parents.parent, jobs.handler, jobs.state, link from {s}.parents left join {s}.jobs on jobs.id = parents.parent
  where child = $1 order by place limit $2"""
CHILDREN = """
  select parents.child, jobs.handler, jobs.state, link from {s}.parents join {s}.jobs on jobs.id = parents.child
  where parent = $1 order by child limit $2"""
COUNTED = """
  select state, count(*) from unnest($1::bigint[]) as it(id) left join {s}.jobs on jobs.id = it.id group by state"""


def with_relatives(connection: Connection, jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs with their `parents` and `children`."""
    ids = array([job["id"] for job in jobs])
    found = {
        id: relatives(connection.rows(PARENTS, id, MAX_SHOWN), connection.rows(CHILDREN, id, MAX_SHOWN))
        for id in connection.column(HAVE_ANY, ids)
    }
    return [job | found.get(job["id"], NO_RELATIVES) for job in jobs]


def counts_by_state(connection: Connection, ids: Sequence[int]) -> dict[str | None, int]:
    """Return how many of these jobs are in each state, by its name; None is for jobs that do not exist."""
    rows = connection.rows(COUNTED, array(ids))
    return {None if state is None else STATES[state].value: n for state, n in rows}
