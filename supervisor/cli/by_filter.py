"""Commands on all jobs that match a filter: they count these, ask, and change them in batches."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TypeVar

import click

from supervisor.cli.context import UserMistake, echo, load_settings
from supervisor.cli.exit_codes import DONE, FATAL
from supervisor.cli.job_filter import Changes
from supervisor.cli.job_output import print_rows
from supervisor.cli.store_access import once_available, opened_store
from supervisor.jobs import JobState
from supervisor.stores.by_filter import COMMANDS, Changed, Command, Found, change_all, find_all
from supervisor.stores.protocol import Store
from supervisor.stores.records import OperatorResult
from supervisor.stores.search import JobFilter
from supervisor.text.units import counted

Answer = TypeVar("Answer")

SHOWN = 10  # jobs of a dry run
REDRAWN_EVERY, LINE_EVERY = 0.2, 5.0
"""Seconds between two reports of progress on a terminal, and elsewhere."""


def change_matching(
    name: str, where: JobFilter, changes: Changes, done: str | Mapping[JobState, str], *,
    command: Command | None = None, to: str = "", first: Callable[[Store], object] = lambda store: None,
    before: Callable[[Store], object] = lambda store: None, each: Callable[[OperatorResult], None] = lambda result: None,
) -> int:  # fmt: skip
    """Change the jobs that match, and print how many. Return the exit code. `done` is as in `job_output.change_jobs`; `command` is by
    default the one with this name, and `to` is where the jobs go; `first` is called before the jobs are found, `before` before the first
    batch, and `each` with the result of each."""
    command = command or COMMANDS[name]
    with opened_store(load_settings()) as store:

        def ask(question: Callable[[Store], Answer]) -> Answer:
            return once_available(lambda: question(store))

        ask(first)
        progress = Progress()
        found = find_all(
            ask, command, where, changes.limit, lambda n, of: progress.show(f"found {n:,}"), force=changes.force
        )  # fmt: skip
        progress.clear()
        if not found.jobs:
            such = "" if where == JobFilter() else "such "
            click.echo(f"no {such}{'dead letters' if command.of_dead_letters else 'jobs'}")
            return DONE
        if changes.dry_run:
            return _show(store, f"{name} {found.text}{to}", found)
        if not (changes.yes or not found.changeable or confirmed(f"{name} {found.text}{to}")):
            echo("nothing was changed", err=True)
            return FATAL
        ask(before)
        result = change_all(
            ask, command, where, found, force=changes.force, each=each,
            report=lambda n, of: progress.show(f"{n:,} of {of:,}"),
        )  # fmt: skip
        progress.clear()
    _print(result, done if isinstance(done, str) else done[_state(command, where)])
    return DONE


def confirmed(change: str) -> bool:
    """Ask whether to go on. Raises UserMistake if nobody can answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserMistake(f"expected --yes, since there is no terminal to ask on: it would {change}")
    return click.confirm(f"{change}?", err=True)


def _show(store: Store, change: str, found: Found) -> int:
    echo(f"would {change}")
    changeable = found.changeable
    if ids := [*islice(reversed([*changeable]), SHOWN)]:
        _, jobs = once_available(lambda: store.get_many(ids))
        print_rows(jobs)
        if len(changeable) > len(jobs):
            click.echo(f"... and {len(changeable) - len(jobs):,} more")
    _print_left("would leave alone", Counter(found.refused.values()))
    return DONE


def _state(command: Command, where: JobFilter) -> JobState:
    return where.state or command.usual[0]


def _print(result: Changed, done: str) -> None:
    click.echo(f"{done}: {counted(result.changed, 'job')}")
    _print_left("left alone", result.left)


def _print_left(left: str, reasons: Mapping[str, int]) -> None:
    for reason, n in reasons.items():
        echo(f"{left}: {counted(n, 'job')}: {reason}", err=True)


class Progress:
    """A report of how far a command has come, on standard error: on a terminal one line that changes."""

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._every = REDRAWN_EVERY if self._on_terminal else LINE_EVERY
        self._shown_at = time.monotonic()
        self._is_drawn = False

    def show(self, text: str) -> None:
        if time.monotonic() - self._shown_at < self._every:
            return
        self._shown_at, self._is_drawn = time.monotonic(), self._on_terminal
        click.echo(f"\r\x1b[K{text}" if self._on_terminal else text, err=True, nl=not self._on_terminal)

    def clear(self) -> None:
        if self._is_drawn:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._is_drawn = False
