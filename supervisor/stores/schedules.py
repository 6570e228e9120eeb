"""The schedules of a store, for all stores: read rows under a lock, decide, enqueue and write the rows, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import orjson

from supervisor.jobs import JobState
from supervisor.retry import Random
from supervisor.schedules.policy import NAME, TIME, Schedule, ScheduleState
from supervisor.stores.extras import NO_EXTRAS
from supervisor.stores.records import EnqueueRow, microseconds
from supervisor.text.units import iso


class ScheduleRow(NamedTuple):
    """A row as it is read: with the state of the last job, None if there is none any more."""

    state: ScheduleState
    job_state: JobState | None = None

    @property
    def unfinished(self) -> bool:
        """Whether the last job has not ended."""
        return self.job_state is not None and not self.job_state.terminal


class ScheduleChange(NamedTuple):
    """A row to write, and the jobs to enqueue with it: the last of them becomes its `last_job`. With `forget` the row is deleted."""

    state: ScheduleState
    jobs: Sequence[EnqueueRow] = ()
    forget: bool = False


Change = Callable[[int, Mapping[str, ScheduleRow]], Sequence[ScheduleChange]]
"""Returns the changes for the time of the store and the rows by name. It may be called again if a commit fails."""


def rows_of(schedule: Schedule, times: Sequence[int], random: Random) -> list[EnqueueRow]:
    """Return a job for each of these fire times, delayed by up to the jitter of the schedule."""
    extras = NO_EXTRAS._replace(
        key=schedule.key, on_failure=schedule.on_failure, group=schedule.group, tags=schedule.tags,
        expires=None if schedule.expires is None else microseconds(schedule.expires),
    )  # fmt: skip
    return [
        EnqueueRow(
            schedule.handler, schedule.payload, schedule.queue, schedule.priority,
            delay=schedule.jitter * random() if schedule.jitter else None,
            headers=orjson.dumps({**(schedule.headers or {}), NAME: schedule.name, TIME: iso(time)}).decode(),
            extras=None if extras == NO_EXTRAS else extras,
        )
        for time in times
    ]  # fmt: skip


class ScheduleTable(Protocol):
    """The rows of schedules in one kind of store."""

    def read(self) -> list[ScheduleRow]:
        """Return all rows, by name."""

    def lock(self, names: Sequence[str], wait: bool) -> tuple[int, list[ScheduleRow]]:
        """Lock the rows of these names, and return the time and the rows. Missing rows are made first, to count from now on. Without
        `wait`, rows that another session has locked are left out."""

    def write(self, states: Sequence[ScheduleState]) -> None: ...

    def delete(self, names: Sequence[str]) -> None: ...


class StoredSchedules:
    """Implements `supervisor.stores.protocol.Schedules`."""

    def __init__(
        self, table: ScheduleTable, transaction: Callable[[], AbstractContextManager[None]],
        enqueue: Callable[[Sequence[EnqueueRow]], list[int]],
    ) -> None:  # fmt: skip
        self._table, self._transaction, self._enqueue = table, transaction, enqueue

    def schedules(self) -> list[ScheduleRow]:
        return self._table.read()

    def change_schedules(self, names: Sequence[str], change: Change, *, wait: bool = False) -> list[list[int]]:
        with self._transaction():
            now, rows = self._table.lock(sorted(names), wait)
            before = {row.state.name: row for row in rows}
            changes = change(now, before)
            ids = iter(self._enqueue([job for it in changes for job in it.jobs]))
            made = [[next(ids) for _ in it.jobs] for it in changes]
            states = [
                it.state._replace(last_job=new[-1]) if new else it.state for it, new in zip(changes, made, strict=True)
            ]
            self._table.write([state for state in states if before[state.name].state != state])
            self._table.delete([it.state.name for it in changes if it.forget])
            return made
