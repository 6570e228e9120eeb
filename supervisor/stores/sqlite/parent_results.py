"""The results of parents in SQLite, which a job is given with its headers once it waits no longer."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.stores.codes import SUCCEEDED
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.texts import HEADERS, MAX_INLINE, PAYLOAD
from supervisor.stores.workflows import MAX_RESULTS, with_results

OWN_TEXTS = Select(
    f"jobs.id, {PAYLOAD}, {HEADERS}",
    """from json_each(?) as it cross join jobs on jobs.id = it.value
      where exists (select 1 from parents where child = jobs.id)""",
)
# The results are not read if they are too large together.
RESULTS = Select(
    "id, succeeded, result, size",
    f"""from (
      select parents.parent as id, (jobs.state is {SUCCEEDED}) as succeeded, size,
        iif(size > {MAX_RESULTS}, null, cast(result as text)) as result
      from (
        select coalesce(sum(length(cast(result as blob))), 0) as size from parents cross join jobs on jobs.id = parents.parent
        where child = ?1)
        cross join parents on parents.child = ?1 left join jobs on jobs.id = parents.parent
      order by place)""",
)
SET_INLINE = "update jobs set headers = ?2 where id = ?1"
SET_LONG = """
  insert into payloads(job_id, payload, headers) values (?1, ?2, ?3)
  on conflict(job_id) do update set payload = excluded.payload, headers = excluded.headers"""
MOVE_OUT = "update jobs set payload = null, headers = null where id = ?"


def give_results(connection: Connection, ids: Sequence[int]) -> None:
    """Give those of these jobs that have parents the results of these."""
    for id, payload, headers in connection.rows(OWN_TEXTS, packed(ids)):
        parents = connection.rows(RESULTS, id)
        size = parents[0][3] if parents else 0
        text = with_results(
            headers, [(parent, bool(succeeded), result) for parent, succeeded, result, _ in parents], size
        )
        if len(text) <= MAX_INLINE and len(payload) <= MAX_INLINE:
            connection.run(SET_INLINE, id, text)
        else:
            connection.run(SET_LONG, id, payload, text)
            connection.run(MOVE_OUT, id)
