"""The commands of the command line as click has them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from supervisor.cli.app import root


def _commands_of(group: click.Group, prefix: str) -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            path = f"{prefix} {name}"
            found |= _commands_of(command, path) if isinstance(command, click.Group) else {path: command}
    return found


COMMANDS = _commands_of(root, "supervisor")


def options_of(command: str) -> set[str]:
    return {
        option
        for parameter in COMMANDS[command].params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }


def arguments_of(command: str) -> list[click.Argument]:
    return [parameter for parameter in COMMANDS[command].params if isinstance(parameter, click.Argument)]


def parse(arguments: Sequence[str]) -> None:
    """Parse `supervisor` with these arguments, and run nothing. Raises click.UsageError."""
    words = list(arguments)
    path, command = "supervisor", None
    while words and command is None:
        path = f"{path} {words.pop(0)}"
        command = COMMANDS.get(path)
    if command is None:
        raise click.UsageError(f"no command {path!r}")
    command.make_context(path, words)
