"""supervisor schedules list, pause, resume, run, forget"""

from __future__ import annotations

from collections.abc import Mapping
from random import random
from typing import Any

import click

from supervisor.cli.context import UserMistake, echo, load_settings
from supervisor.cli.exit_codes import DONE
from supervisor.cli.options import SuggestingGroup, config_option, json_option, name_of, read_with
from supervisor.cli.render import ago, due, print_json, print_table
from supervisor.cli.schedule_rows import Found, found_schedules, in_store, read_store, schedule_dict
from supervisor.cli.store_access import use_store
from supervisor.config.settings import Settings
from supervisor.schedules.policy import Schedule, paused
from supervisor.stores.opening import is_postgres
from supervisor.stores.protocol import Store
from supervisor.stores.schedules import ScheduleChange, ScheduleRow, rows_of
from supervisor.text.names import did_you_mean_or_all

COLUMNS = ("schedule", "handler", "fires", "next", "last", "outcome", "last job", "job state", "problems")

schedule_argument = click.argument("schedule", callback=read_with(name_of))


@click.group(cls=SuggestingGroup)
@config_option
def schedules() -> None:
    """Show schedules, pause or resume them, run one now, or forget one that was taken out."""


@schedules.command("list")
@config_option
@json_option
def list_schedules(as_json: bool) -> None:
    """List schedules with their next and last fire times, the last job of each, and what keeps them from firing."""
    settings = load_settings()
    found = found_schedules(settings)
    stored = in_store(settings)
    names = sorted({*found.schedules, *stored.rows})
    shown = [schedule_dict(name, found, stored) for name in names]
    if as_json:
        for each in shown:
            print_json(each)
        return
    if found.failure:
        echo(f"Warning: the plugins could not be examined: {found.failure}", err=True)
    if not print_table(COLUMNS, map(_cells, shown)):
        click.echo("no schedules: `schedules:` in the config or @handler(schedule=...) makes one")


def _cells(shown: dict[str, Any]) -> tuple[Any, ...]:
    job = shown["last_job"] or {"id": None, "state": None}
    return (
        shown["schedule"],
        shown["handler"],
        shown["fires"],
        due(shown["next_at"]),
        ago(shown["last_at"]),
        shown["last_outcome"],
        job["id"],
        job["state"],
        "; ".join(shown["problems"]),
    )


@schedules.command()
@config_option
@schedule_argument
def pause(schedule: str) -> int:
    """Stop enqueueing jobs of a schedule, in all supervisors. Jobs that it has enqueued go on."""
    was_paused = _set_paused(load_settings(), schedule, True)
    click.echo(f"{schedule}: was paused already" if was_paused else f"{schedule}: paused")
    return DONE


@schedules.command()
@config_option
@schedule_argument
def resume(schedule: str) -> int:
    """Let a paused schedule fire again, from now on."""
    was_paused = _set_paused(load_settings(), schedule, False)
    click.echo(f"{schedule}: resumed" if was_paused else f"{schedule}: was not paused")
    return DONE


@schedules.command()
@config_option
@schedule_argument
def run(schedule: str) -> int:
    """Enqueue a job of a schedule now, even if it is paused, and print its id.

    It is refused while the last job of a schedule with overlap: skip has not ended.
    """
    settings = load_settings()
    found = found_schedules(settings)
    if found.failure:
        raise UserMistake(f"the plugins could not be examined: {found.failure}")
    its = found.schedules.get(schedule)
    if its is None:
        hint = did_you_mean_or_all(schedule, found.schedules)
        raise UserMistake(f"no schedule {schedule!r} in this config and its plugins{hint}")
    if problem := found.handler_problem(its):
        echo(f"Warning: {problem}", err=True)
    click.echo(use_store(settings, lambda store: _enqueue_now(store, its), create=not is_postgres(settings.store)))
    return DONE


def _enqueue_now(store: Store, schedule: Schedule) -> int:
    """Enqueue a job that is due at once, and return its id. Raises UserMistake if it would run beside another although
    `overlap` is skip: the row has place for one job, so the next fire time would overlook one of two."""

    def change(now: int, rows: Mapping[str, ScheduleRow]) -> list[ScheduleChange]:
        (row,) = rows.values()
        if schedule.overlap == "skip" and row.unfinished:
            raise UserMistake(
                f"job {row.state.last_job} of this schedule has not ended, and overlap: skip allows no other beside it: wait, "
                f"or cancel it with: supervisor jobs cancel {row.state.last_job}"
            )
        return [ScheduleChange(row.state, rows_of(schedule._replace(jitter=0.0), [now], random))]

    ((id,),) = store.change_schedules([schedule.name], change, wait=True)
    return id


@schedules.command()
@config_option
@schedule_argument
def forget(schedule: str) -> int:
    """Delete what the store has of a schedule that no running supervisor fires. Jobs that it has enqueued go on."""
    use_store(load_settings(), lambda store: _forget(store, schedule))
    click.echo(f"{schedule}: forgotten")
    return DONE


def _forget(store: Store, name: str) -> None:
    """Raises UserMistake if the store does not know the schedule, or a running supervisor has it."""
    stored = read_store(store)
    if name not in stored.rows:
        hint = did_you_mean_or_all(name, sorted(stored.rows)) if stored.rows else ""
        raise UserMistake(f"no schedule {name!r} in the store{hint}")
    if owners := stored.supervisors.get(name):
        raise UserMistake(
            f"supervisor {owners[0]} fires it: take it out of the config or the plugin, and reload that supervisor, before it is forgotten"
        )
    store.change_schedules(
        [name], lambda now, rows: [ScheduleChange(row.state, forget=True) for row in rows.values()], wait=True
    )


def _set_paused(settings: Settings, name: str, is_paused: bool) -> bool:
    """Pause or resume the schedule, and return whether it was paused before. Raises UserMistake if nobody knows it."""

    def change(store: Store) -> bool:
        known = {row.state.name: row for row in store.schedules()}
        if name not in known:
            _require(name, settings, known)
        was_paused = False

        def change(now: int, rows: Mapping[str, ScheduleRow]) -> list[ScheduleChange]:
            nonlocal was_paused
            (row,) = rows.values()
            was_paused = row.state.paused
            return [ScheduleChange(paused(row.state, now, is_paused))]

        store.change_schedules([name], change, wait=True)
        return was_paused

    create = name in settings.schedules and not is_postgres(settings.store)
    return use_store(settings, change, create=create)


def _require(name: str, settings: Settings, known: dict[str, Any]) -> None:
    """Raise UserMistake unless the config or a plugin has the schedule."""
    if name in settings.schedules:
        return
    found: Found = found_schedules(settings)
    if name not in found.schedules:
        hint = did_you_mean_or_all(name, sorted({*known, *found.schedules}))
        raise UserMistake(f"no schedule {name!r} in the store, in this config and its plugins{hint}")
