"""The rows of schedules in memory."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.schedules.policy import ScheduleState
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.schedules import ScheduleRow


class ScheduleTable:
    """Implements `supervisor.stores.schedules.ScheduleTable`."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    def read(self) -> list[ScheduleRow]:
        with self._state.lock:
            return [self._row(state) for _, state in sorted(self._state.schedules.items())]

    def lock(self, names: Sequence[str], wait: bool) -> tuple[int, list[ScheduleRow]]:
        """Return the rows: the open transaction has locked everything."""
        now, known = self._state.now(), self._state.schedules
        return now, [self._row(known.setdefault(name, ScheduleState(name, since=now))) for name in names]

    def write(self, states: Sequence[ScheduleState]) -> None:
        self._state.schedules.update((state.name, state) for state in states)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            del self._state.schedules[name]

    def _row(self, state: ScheduleState) -> ScheduleRow:
        job = None if state.last_job is None else self._state.jobs.get(state.last_job)
        return ScheduleRow(state, None if job is None else job.state)
