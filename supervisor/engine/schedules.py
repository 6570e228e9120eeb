"""The timer of schedules: it sleeps until the next fire time, and then lets the writer decide and enqueue in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.engine.tasks import BackgroundTasks, SingleTask
from supervisor.events import Bus, ConfigWarning
from supervisor.retry import GrowingDelay, Random
from supervisor.schedules.events import ScheduleFired, ScheduleMissed, ScheduleSkipped
from supervisor.schedules.fire_times import MICROSECONDS
from supervisor.schedules.policy import Decision, Schedule, decide, removed
from supervisor.stores.protocol import Limited, Schedules, Store
from supervisor.stores.records import EnqueueRow
from supervisor.stores.schedules import ScheduleChange, ScheduleRow, rows_of
from supervisor.text.units import iso

MAX_SLEEP = 1.0
"""Seconds after which the wall clock is read again: it may have been set, or the machine may have been suspended."""
LOOK_AGAIN = 60.0
"""Seconds after which all rows are read again: the clock of the store may have been set, or others have changed them."""
SET_BACK = 1.0
FIRST_RETRY, MAX_RETRY = 1.0, 10.0
NOT_KEPT = "schedules: this store keeps none, so no job is enqueued for them"


class Decided(NamedTuple):
    """The decisions of one transaction at the store's time `now`, when the wall clock was `wall`, with the ids of the jobs of each."""

    now: int
    wall: float
    decisions: Sequence[Decision]
    ids: Sequence[Sequence[int]]


class ScheduleTimer:
    """Fires the schedules in force. It does nothing before `start`, and costs nothing as long as there is no schedule.

    Of each schedule it knows since when its fire times count here (see `policy.decide`), and the next one by the wall clock.
    """

    def __init__(
        self, store: Store, config: CurrentConfig, writer: Writer, bus: Bus, loop: asyncio.AbstractEventLoop,
        tasks: BackgroundTasks, random: Random, wall: Callable[[], float], on_fired: Callable[[], None],
    ) -> None:  # fmt: skip
        self._store, self._config, self._writer, self._bus, self._loop = store, config, writer, bus, loop
        self._random, self._wall, self._on_fired = random, wall, on_fired
        self._firing = SingleTask(tasks, self._fire)
        self._schedules: Mapping[str, Schedule] = {}
        self._removed: dict[str, Schedule] = {}
        self._since: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._looked_at = self._read_at = 0.0
        self._failures = GrowingDelay(FIRST_RETRY, MAX_RETRY)
        self._timer: asyncio.TimerHandle | None = None
        self._started = False

    def start(self) -> None:
        """Fire from now on. Fire times that have passed since the last supervisor ended are missed ones."""
        store = self._store
        keeps = isinstance(store, Schedules) and not (isinstance(store, Limited) and "change_schedules" in store.limits)
        if not keeps and self._config.schedules:
            self._bus.emit(ConfigWarning(NOT_KEPT))
        self._started = keeps
        self.replace()

    def names(self) -> list[str]:
        """Return the names of the schedules that fire here."""
        return [*self._schedules] if self._started else []

    def stop(self) -> None:
        self._started = False
        if self._timer is not None:
            self._timer.cancel()

    def replace(self) -> None:
        """Use the schedules that the configuration has now. Those with another timing start anew, and those taken out stop."""
        if not self._started:
            return
        before, now = self._schedules, self._config.schedules
        self._schedules = now
        gone = {name: it for name, it in before.items() if name not in now}
        self._removed = {name: it for name, it in {**self._removed, **gone}.items() if name not in now}
        changed = {name for name, it in before.items() if name not in now or now[name].timing != it.timing}
        self._since = {name: since for name, since in self._since.items() if name not in changed}
        self._due = dict.fromkeys(now, 0.0)
        self._wake()

    def _wake(self) -> None:
        """Fire what is due, and sleep until the next one is due."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._started or not (self._schedules or self._removed):
            return
        wall = self._wall()
        if wall < self._looked_at - SET_BACK or wall >= self._read_at + LOOK_AGAIN:
            self._due = dict.fromkeys(self._schedules, 0.0)
        self._looked_at = wall
        until = min(self._due.values(), default=0.0) - wall
        self._timer = self._loop.call_later(min(until, MAX_SLEEP) if until > 0.0 else MAX_SLEEP, self._wake)
        if until <= 0.0:
            self._firing.start()

    async def _fire(self) -> None:
        wall, removed = self._wall(), self._removed
        schedules = {name: self._schedules[name] for name, due in self._due.items() if due <= wall}
        if len(schedules) == len(self._schedules):
            self._read_at = wall
        since = {name: self._since[name] for name in schedules if name in self._since}
        try:
            if removed:
                await self._writer.submit(lambda store: _remove(store, removed), Purpose.SCHEDULE)
                self._removed = {name: it for name, it in self._removed.items() if removed.get(name) is not it}
            call = _Call(schedules, since, self._random, self._wall)
            self._note(schedules, await self._writer.submit(call, Purpose.SCHEDULE))
            self._failures.reset()
            delay = 0.0
        except NotDone:
            delay = self._failures.next()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay, self._wake)  # this task has ended then

    def _note(self, schedules: Mapping[str, Schedule], decided: Decided) -> None:
        """Note when each is due next, and report what was decided. A schedule that was replaced meanwhile is looked at again."""
        due = dict.fromkeys(schedules, decided.wall + MAX_SLEEP)  # of rows that another session has locked
        fired = False
        for decision, ids in zip(decided.decisions, decided.ids, strict=True):
            name, next_at = decision.state.name, decision.next_at
            fired = fired or bool(ids)
            self._report(decision, ids)
            due[name] = float("inf") if next_at is None else decided.wall + (next_at - decided.now) / MICROSECONDS
            if self._schedules.get(name) is schedules[name]:
                self._since[name] = decision.since
        self._due.update((name, at) for name, at in due.items() if self._schedules.get(name) is schedules[name])
        if fired:
            self._on_fired()

    def _report(self, decision: Decision, ids: Sequence[int]) -> None:
        name, at = decision.state.name, iso(decision.state.last) or ""
        if decision.missed:
            number, more = len(decision.missed), decision.more_missed
            self._bus.emit(ScheduleMissed(name, iso(decision.missed[-1]) or "", number, more, len(ids)))
        if decision.skipped:
            self._bus.emit(ScheduleSkipped(name, at, decision.skipped))
        if ids:
            self._bus.emit(ScheduleFired(name, at, tuple(ids)))


class _Call:
    """A call for the writer, which may be made again if its commit fails: each decides anew by the rows as they are then."""

    def __init__(
        self, schedules: Mapping[str, Schedule], since: Mapping[str, int], random: Random, wall: Callable[[], float]
    ) -> None:
        self._schedules, self._since, self._random, self._wall = schedules, since, random, wall

    def __call__(self, store: Store) -> Decided:
        decided = Decided(0, 0.0, (), ())

        def change(now: int, rows: Mapping[str, ScheduleRow]) -> list[ScheduleChange]:
            nonlocal decided
            decisions = [self._decide(row, now) for row in rows.values()]
            decided = Decided(now, self._wall(), decisions, ())
            return [ScheduleChange(it.state, self._jobs(it)) for it in decisions]

        ids = store.change_schedules([*self._schedules], change)
        return decided._replace(ids=ids)

    def _decide(self, row: ScheduleRow, now: int) -> Decision:
        name = row.state.name
        return decide(self._schedules[name], row.state, now, since=self._since.get(name), unfinished=row.unfinished)

    def _jobs(self, decision: Decision) -> list[EnqueueRow]:
        return rows_of(self._schedules[decision.state.name], decision.fires, self._random)


def _remove(store: Store, schedules: Mapping[str, Schedule]) -> None:
    def change(now: int, rows: Mapping[str, ScheduleRow]) -> list[ScheduleChange]:
        return [ScheduleChange(removed(row.state, schedules[name].timing)) for name, row in rows.items()]

    store.change_schedules([*schedules], change)
