"""The options by which commands find jobs, and those of commands that change all that are found."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from supervisor.cli.context import current_context
from supervisor.cli.options import COUNT, name_of, read_with
from supervisor.jobs import JobState
from supervisor.stores.search import JobFilter, header_of, searched_text
from supervisor.text.units import parse_moment

F = TypeVar("F", bound=Callable[..., Any])

FILTER = ("state", "queue", "handler", "tag", "header", "error", "since", "until")


class GivenFilter(NamedTuple):
    """A filter, and the options as they were written."""

    where: JobFilter
    options: Sequence[str]

    def command_line(self, command: Sequence[str], more: Sequence[str]) -> str:
        """Return a command with these options, as it is written in a shell."""
        config = current_context().config
        named = [] if config is None else ["-c", str(config)]
        return shlex.join(["supervisor", *command, *named, *self.options, *more])


class Changes(NamedTuple):
    """How to change the jobs that match."""

    limit: int | None
    dry_run: bool
    yes: bool
    force: bool

    @property
    def given(self) -> list[str]:
        options = {"--limit": self.limit is not None, "--dry-run": self.dry_run, "--yes": self.yes}
        return [name for name, given in options.items() if given]


dry_run_option = click.option("--dry-run", is_flag=True, help="Only print how many there are, and some of them.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Change them without a question.")


def filter_options(states: Iterable[str], noun: str = "jobs") -> Callable[[F], F]:
    """Return a decorator that adds the options of a filter, which `take_filter` takes."""
    return _adding(
        click.option("--state", type=click.Choice([str(state) for state in states]), help=f"Only {noun} in this state."),
        click.option("--queue", metavar="NAME", callback=read_with(name_of), help=f"Only {noun} of this queue."),
        click.option("--handler", metavar="NAME", callback=read_with(name_of), help=f"Only {noun} for this handler."),
        click.option("--tag", metavar="NAME", callback=read_with(name_of), help=f"Only {noun} with this tag."),
        click.option("--header", metavar="NAME=VALUE", help=f"Only {noun} with this value of a header."),
        click.option(
            "--error", metavar="TEXT", callback=read_with(searched_text),
            help=f"Only {noun} with this text in the cause, the type or the message of their last error.",
        ),
        click.option("--since", metavar="TIME", help=f"Only {noun} created then or later: a time, or 2h for two hours ago."),
        click.option("--until", metavar="TIME", help=f"Only {noun} created before."),
    )  # fmt: skip


def change_options(states: Iterable[str], noun: str = "jobs") -> Callable[[F], F]:
    """Return a decorator that adds ids, the options of a filter and those of Changes but `force`, which `take_changes` takes."""
    return _adding(
        click.argument("ids", nargs=-1, type=COUNT, metavar="[ID...]"),
        filter_options(states, noun),
        click.option("--limit", type=COUNT, help=f"Change this number of {noun} at most, the newest."),
        dry_run_option,
        yes_option,
    )


def take_filter(options: dict[str, Any]) -> GivenFilter:
    """Take the options of a filter of jobs out of `options`."""
    given, written = _taken(options)
    state = given.pop("state", None)
    return GivenFilter(JobFilter(**given, state=None if state is None else JobState(state)), written)


def take_filter_of_dead_letters(options: dict[str, Any]) -> GivenFilter:
    given, written = _taken(options)
    state = given.pop("state", None)
    return GivenFilter(JobFilter(**given, dead_letter=state), written)


def take_changes(options: dict[str, Any], *, force: bool = False) -> Changes:
    return Changes(options.pop("limit"), options.pop("dry_run"), options.pop("yes"), force)


def refuse_mixture(ids: Sequence[int], given: GivenFilter, changes: Changes, expected: str = "the ids of jobs") -> None:
    """Raise UsageError unless there are either ids or a filter: a command is never for all jobs by mistake."""
    for_filters = [*(part for part in given.options if part.startswith("--")), *changes.given]
    if ids and for_filters:
        raise click.UsageError(
            f"expected either ids or a filter; {for_filters[0]} is only for those that match a filter"
        )
    if not ids and not given.options:
        raise click.UsageError(f"expected {expected}, or a filter such as --queue NAME (see --help)")


def _adding(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def _taken(options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    given = {name: value for name in FILTER if (value := options.pop(name)) is not None}
    written = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    for name, parse in PARSED.items():
        if name in given:
            given[name] = _parsed(name, given[name], parse)
    return given, written


def _parsed(name: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}, got {text!r}", param_hint=f"--{name}") from None


def _moment(text: str) -> int:
    return parse_moment(text, time.time())


PARSED: Mapping[str, Callable[[str], Any]] = {"since": _moment, "until": _moment, "header": header_of}
"""The options that are written again as they were, in the command for the next page."""
