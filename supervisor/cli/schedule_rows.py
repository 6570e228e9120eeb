"""Schedules as a person sees them: what the config and the plugins have, beside what the store has."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from supervisor.cli.store_access import use_store
from supervisor.config.schedules_in_force import schedules_of
from supervisor.config.settings import Settings
from supervisor.errors import ConfigError, NoForkserver, StoreMissing, SystemRefused
from supervisor.schedules.fire_times import MICROSECONDS, Cron, Every, shown_timing
from supervisor.schedules.policy import Schedule, ScheduleState, decide
from supervisor.stores.codes import LEFT
from supervisor.stores.protocol import Store
from supervisor.stores.schedules import ScheduleRow
from supervisor.text.names import did_you_mean
from supervisor.text.units import iso

ENDED = ("gone", LEFT)
"""States of supervisors that run no more."""


class Found(NamedTuple):
    """The schedules of the config and its plugins. `handlers` is None if some plugin did not load: it may have any handler.
    `failure` is why none could be examined."""

    schedules: Mapping[str, Schedule]
    handlers: frozenset[str] | None
    failure: str = ""

    def handler_problem(self, schedule: Schedule) -> str:
        if self.handlers is None or schedule.handler in self.handlers:
            return ""
        return f"no plugin has the handler {schedule.handler!r}{did_you_mean(schedule.handler, self.handlers)}"


class InStore(NamedTuple):
    """The rows of the store by name, the supervisors that run by the names of their schedules, and the time of the store."""

    rows: Mapping[str, ScheduleRow]
    supervisors: Mapping[str, Sequence[str]]
    now: int


def found_schedules(settings: Settings) -> Found:
    """Examine the plugins too: they have schedules of their own."""
    from supervisor.cli.plugin_scan import scan

    try:
        reports = scan(settings)
    except (ConfigError, NoForkserver, SystemRefused) as error:
        return Found(schedules_of(settings, {}), None, str(error))
    handlers = {info.name: info for report in reports for info in report.handlers}
    known = None if any(report.error is not None for report in reports) else frozenset(handlers)
    return Found(schedules_of(settings, handlers), known)


def in_store(settings: Settings) -> InStore:
    """Read the store; one that does not exist yet has no rows."""
    try:
        return use_store(settings, read_store)
    except StoreMissing:
        return InStore({}, {}, round(time.time() * MICROSECONDS))


def read_store(store: Store) -> InStore:
    rows = {row.state.name: row for row in store.schedules()}
    owners: dict[str, list[str]] = {}
    for supervisor in store.stats()["supervisors"]:
        for name in supervisor["schedules"] if supervisor["state"] not in ENDED else ():
            owners.setdefault(name, []).append(supervisor["owner"])
    return InStore(rows, owners, round(store.clock() * MICROSECONDS))


def schedule_dict(name: str, found: Found, stored: InStore) -> dict[str, Any]:
    """Return the object that `schedules list --json` prints."""
    schedule, row = found.schedules.get(name), stored.rows.get(name)
    state = ScheduleState(name, since=stored.now) if row is None else row.state
    timing = None if schedule is None else schedule.timing
    next_at = None if schedule is None or state.paused else decide(schedule, state, stored.now).next_at
    cron = timing if isinstance(timing, Cron) else None
    every = timing if isinstance(timing, Every) else None
    return {
        "schedule": name,
        "handler": state.handler if schedule is None else schedule.handler,
        "fires": shown_timing(state.timing if timing is None else timing.text) or None,
        "cron": cron and cron.expression,
        "timezone": cron and cron.timezone,
        "every": every and every.interval / MICROSECONDS,
        **{
            name: None if schedule is None else getattr(schedule, name)
            for name in ("queue", "key", "group", "tags", "expires")
        },
        "paused": state.paused,
        "next_at": iso(next_at),
        "last_at": iso(state.last),
        "last_outcome": state.outcome or None,
        "last_job": None if state.last_job is None else {"id": state.last_job, "state": row and row.job_state},
        "supervisors": list(stored.supervisors.get(name, ())),
        "problems": _problems(schedule, state, found, stored),
    }


def _problems(schedule: Schedule | None, state: ScheduleState, found: Found, stored: InStore) -> list[str]:
    """Return what keeps the schedule from firing as this config has it."""
    problems = ["paused"] if state.paused else []
    running = stored.supervisors.get(state.name)
    if schedule is None:
        problems.append("not in this config and its plugins" + ("" if running else ", so it does not fire"))
        return problems
    if not running:
        problems.append("no running supervisor has it, so it does not fire")
    elif state.timing and state.timing != schedule.timing.text:
        problems.append(f"supervisors fire it as {shown_timing(state.timing)}: reload or restart them")
    if problem := found.handler_problem(schedule):
        problems.append(f"{problem}, so its jobs wait")
    return problems
