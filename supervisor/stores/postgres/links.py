"""Jobs that wait for other jobs in PostgreSQL: they are blocked until those have ended. Each change of a job's state goes on from here."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.stores.newly_ready import NewlyReady
from supervisor.stores.postgres.connection import Connection, array
from supervisor.stores.postgres.functions import BODY
from supervisor.stores.postgres.groups import Groups

# The functions that a store calls run with the rights of its owner, as `put` does.
LINK_FUNCTIONS = (
    f"""create function {{s}}.jobs_due(ids bigint[]) returns void language sql security definer
      set search_path = pg_catalog, pg_temp as {BODY}
        select {{s}}.acquire_keys(ids);
        select {{s}}.take_turns(ids);
      {BODY}""",
    f"""create function {{s}}.jobs_due_here(ids bigint[]) returns void language sql security definer
      set search_path = pg_catalog, pg_temp as {BODY}
        select {{s}}.take_turns({{s}}.try_to_acquire_keys(ids));
      {BODY}""",
    f"""create function {{s}}.jobs_ended(ids bigint[], deleted boolean) returns setof text language sql security definer
      set search_path = pg_catalog, pg_temp as {BODY}
        delete from {{s}}.held_back where job_id = any(ids);
        select {{s}}.end_jobs(ids, deleted) {BODY}""",
    f"""create function {{s}}.jobs_lost() returns setof text language sql security definer
      set search_path = pg_catalog, pg_temp as {BODY}
        select {{s}}.pass_on_lost_keys() union all select {{s}}.end_lost_parents() {BODY}""",
    f"""create function {{s}}.jobs_run_again(ids bigint[]) returns void language sql security definer
      set search_path = pg_catalog, pg_temp as {BODY} select {{s}}.run_again(ids) {BODY}""",
    """revoke execute on function {s}.jobs_due(bigint[]), {s}.jobs_due_here(bigint[]), {s}.jobs_ended(bigint[], boolean), {s}.jobs_run_again(bigint[]),
      {s}.jobs_lost() from public""",
)
DUE = "select {s}.jobs_due_here($1::bigint[])"
ENDED = "select {s}.jobs_ended($1::bigint[], $2)"
RUN_AGAIN = "select {s}.jobs_run_again($1::bigint[])"
LOST = "select {s}.jobs_lost()"


class Links:
    """The relations between jobs. All calls are made inside the transaction that changes the jobs, whose rows are locked."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self.groups = connection, Groups(connection)
        self._newly_ready = NewlyReady()
        self.newly_ready = self._newly_ready.take
        connection.on_rollback(self._newly_ready.clear)

    def due(self, ids: Sequence[int]) -> None:
        """Block those of these ready jobs whose key another job holds, and give the others a turn. Jobs whose keys another session has
        locked are due later."""
        if ids:
            self._connection.later(DUE, array(ids))

    def run_again(self, ids: Sequence[int]) -> None:
        """Block those of these jobs, which are ready again, that have to wait, and the jobs that wait for these again."""
        if ids:
            self._connection.later(RUN_AGAIN, array(ids))

    def ended(self, ids: Sequence[int], deleted: bool = False) -> None:
        """Let the jobs go on that have waited for these, which have ended, or are about to be `deleted`."""
        if ids:
            self._newly_ready.add(self._connection.column(ENDED, array(ids), deleted))

    def repair(self) -> frozenset[str]:
        """Let jobs go on that wait in vain, since other programs have changed or locked rows by plain SQL. Return their queues."""
        found = frozenset(self._connection.column(LOST))
        self._newly_ready.add(found)
        return found
