"""The rows of schedules in a PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.schedules.policy import ScheduleState
from supervisor.stores.codes import STATES
from supervisor.stores.postgres.connection import NOW, Connection, Row, packed
from supervisor.stores.schedules import ScheduleRow

# The columns are the fields of ScheduleState, in their order.
SCHEDULES = """create table {s}.schedules(
      name text collate "C" primary key,
      handler text not null default '',
      timing text not null default '',
      since bigint not null,
      last bigint,
      outcome text not null default '',
      paused boolean not null default false,
      last_job bigint)
    with (fillfactor = 70)"""

_COLUMNS = "name, handler, timing, since, last, outcome, paused, last_job"
_ROW = f"{_COLUMNS}, (select state from {{s}}.jobs where id = last_job)"
_THESE = f"select {_ROW} from {{s}}.schedules where name in (select json_array_elements_text($1)) order by name"
ALL = f"select {_ROW} from {{s}}.schedules order by name"
KNOWN = "select count(*) from {s}.schedules where name in (select json_array_elements_text($1))"
MAKE = f"""
  insert into {{s}}.schedules(name, since) select it.name, {NOW} from json_array_elements_text($1) as it(name)
  order by it.name on conflict do nothing"""
LOCK = f"{_THESE} for no key update of schedules"
LOCK_FREE = f"{LOCK} skip locked"
WRITE = f"""
  insert into {{s}}.schedules({_COLUMNS})
  select {_COLUMNS} from json_populate_recordset(null::{{s}}.schedules, $1)
  on conflict(name) do update set handler = excluded.handler, timing = excluded.timing, since = excluded.since,
    last = excluded.last, outcome = excluded.outcome, paused = excluded.paused, last_job = excluded.last_job"""

DELETE = "delete from {s}.schedules where name in (select json_array_elements_text($1))"


class ScheduleTable:
    """Implements `supervisor.stores.schedules.ScheduleTable`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def read(self) -> list[ScheduleRow]:
        with self._connection.snapshot():
            return [_row(values) for values in self._connection.rows(ALL)]

    def lock(self, names: Sequence[str], wait: bool) -> tuple[int, list[ScheduleRow]]:
        wanted = packed(names)
        if self._connection.value(KNOWN, wanted) < len(names):
            self._connection.later(MAKE, wanted)
        rows = self._connection.rows(LOCK if wait else LOCK_FREE, wanted)
        return int(self._connection.value(f"select {NOW}")), [_row(values) for values in rows]

    def write(self, states: Sequence[ScheduleState]) -> None:
        if states:
            self._connection.later(WRITE, packed([state._asdict() for state in states]))

    def delete(self, names: Sequence[str]) -> None:
        if names:
            self._connection.later(DELETE, packed(names))


def _row(values: Row) -> ScheduleRow:
    *fields, code = values
    return ScheduleRow(ScheduleState._make(fields), None if code is None else STATES[code])
