"""The rows of schedules in a SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from supervisor.schedules.policy import ScheduleState
from supervisor.stores.codes import STATES
from supervisor.stores.limits import MAX_TIME
from supervisor.stores.schedules import ScheduleRow
from supervisor.stores.sqlite.connection import Connection, Select, packed

_TIME = f"between {-2 * MAX_TIME} and {2 * MAX_TIME}"
# A row that no supervisor could read is refused. The columns are the fields of ScheduleState, in their order.
SCHEDULES = f"""create table schedules(
      name text primary key,
      handler text not null default '',
      timing text not null default '',
      since int not null check (typeof(since) = 'integer' and since {_TIME}),
      last int check (last is null or (typeof(last) = 'integer' and last {_TIME})),
      outcome text not null default '',
      paused int not null default 0 check (paused in (0, 1)),
      last_job int check (last_job is null or typeof(last_job) = 'integer')) without rowid"""

_COLUMNS = "name, handler, timing, since, last, outcome, paused, last_job"
_ROW = f"{_COLUMNS}, (select state from jobs where id = last_job)"
ALL = Select(_ROW, "from (select * from schedules order by name)")
THESE = Select(_ROW, "from json_each(?) as it cross join schedules on schedules.name = it.value")
MAKE = "insert into schedules(name, since) select value, ?1 from json_each(?2) where true on conflict do nothing"
WRITE = f"insert or replace into schedules({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)"

DELETE = "delete from schedules where name in (select value from json_each(?))"


class ScheduleTable:
    """Implements `supervisor.stores.schedules.ScheduleTable`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def read(self) -> list[ScheduleRow]:
        with self._connection.snapshot():
            return [_row(values) for values in self._connection.rows(ALL)]

    def lock(self, names: Sequence[str], wait: bool) -> tuple[int, list[ScheduleRow]]:
        """Return the rows: the open transaction has the write lock."""
        now, wanted = self._connection.now(), packed(names)
        rows = self._connection.rows(THESE, wanted)
        if len(rows) < len(names):
            self._connection.run(MAKE, now, wanted)
            rows = self._connection.rows(THESE, wanted)
        return now, [_row(values) for values in rows]

    def write(self, states: Sequence[ScheduleState]) -> None:
        if states:
            self._connection.run_many(WRITE, states)

    def delete(self, names: Sequence[str]) -> None:
        if names:
            self._connection.run(DELETE, packed(names))


def _row(values: list[Any]) -> ScheduleRow:
    *fields, code = values
    state = ScheduleState._make(fields)
    return ScheduleRow(state._replace(paused=bool(state.paused)), None if code is None else STATES[code])
