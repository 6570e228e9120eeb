"""The class of groups of commands, and the options and arguments that several commands take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from supervisor.cli.context import CommandContext
from supervisor.text.names import NAME, did_you_mean_or_all, is_name
from supervisor.text.strict_json import MAX_INTEGER
from supervisor.text.units import parse_duration

F = TypeVar("F", bound=Callable[..., Any])

MIN_INTERVAL = 0.1
"""Seconds from one look at the store to the next."""
COUNT = click.IntRange(min=1, max=MAX_INTEGER)


class OnceCommand(click.Command):
    """A command that refuses an option with a value which is given twice. Click takes the last one: a filter with two tags would be
    for all jobs with one of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=[*args])
        for param, times in Counter(given).items():
            takes_one = isinstance(param, click.Option) and not (param.is_flag or param.multiple)
            if times > 1 and takes_one and param.expose_value and not ctx.resilient_parsing:
                raise click.UsageError(f"expected {param.opts[-1]} once at most, got it {times} times", ctx)
        return super().parse_args(ctx, args)


class SuggestingGroup(click.Group):
    """A group that lists its commands in the order of their definition, and answers a misspelt name with the nearest one."""

    command_class: type[click.Command] | None = OnceCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not ctx.resilient_parsing and self.get_command(ctx, name) is None and not name.startswith("-"):
            raise click.UsageError(f"no command {name!r}{did_you_mean_or_all(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)


def _use_config(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """Use the file. Click reads the option before the command first, so one after the command overrides it."""
    if value is not None:
        ctx.ensure_object(CommandContext).config = value


config_option = click.option(
    "-c",
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    expose_value=False,
    callback=_use_config,
    help="Configuration file; by default $SUPERVISOR_CONFIG, ./supervisor.yaml or ./etc/supervisor.yaml.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
force_option = click.option("--force", is_flag=True, help="Include jobs with a dead letter that some sink still lacks.")
limit_option = click.option(
    "--limit", type=COUNT, default=100, show_default=True, help="The largest number of jobs to list."
)
job_ids = click.argument("ids", nargs=-1, required=True, type=COUNT, metavar="ID...")


def read_with(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Return a callback that parses the text of an option; a ValueError of `parse` becomes a usage error."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return read


def name_of(text: str) -> str:
    """Return the name of a queue or handler; raise ValueError if it can't be one."""
    if not is_name(text):
        raise ValueError(f"expected {NAME}, got {text!r}")
    return text


def interval_of(text: str) -> float:
    """Return the seconds of a number such as `0.5`, or of a duration such as `2s`."""
    try:
        seconds = parse_duration(float(text))
    except ValueError:
        seconds = parse_duration(text)
    if seconds < MIN_INTERVAL:
        raise ValueError(f"expected at least {MIN_INTERVAL:g} seconds, got {text!r}")
    return seconds
