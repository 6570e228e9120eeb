"""Options and arguments that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from supervisor.text.names import NAME, is_name
from supervisor.text.strict_json import MAX_INTEGER

F = TypeVar("F", bound=Callable[..., Any])

COUNT = click.IntRange(min=1, max=MAX_INTEGER)


def config_option(command: F) -> F:
    return click.option(
        "-c",
        "--config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Configuration file; by default $SUPERVISOR_CONFIG, ./supervisor.yaml or ./etc/supervisor.yaml.",
    )(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
force_option = click.option(
    "--force", is_flag=True, help="Include jobs with a dead letter that no sink has accepted yet."
)
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
