"""The group of all commands, and how a mistake ends: one clear message and exit code 2, never a traceback."""

from __future__ import annotations

import importlib
import io
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

import click

from supervisor.cli.context import MISTAKE, CommandContext, add_plugin_commands, config_option
from supervisor.cli.standard_streams import OutputLost, output_error
from supervisor.errors import ConfigError, NoForkserver, StoreError
from supervisor.text.strict_json import NotJSON
from supervisor.text.suggestions import did_you_mean_or_all

COMMANDS = {
    "run": "supervisor.cli.run",
    "check": "supervisor.cli.check",
    "enqueue": "supervisor.cli.enqueue",
    "status": "supervisor.cli.status",
    "jobs": "supervisor.cli.jobs",
    "dlq": "supervisor.cli.dlq",
    "queues": "supervisor.cli.queues",
    "plugins": "supervisor.cli.plugins",
    "copy": "supervisor.cli.copy",
    "bench": "supervisor.cli.bench.command",
}
INTERRUPTED = 130
OUTPUT_LOST = FATAL = 1


class SuggestingGroup(click.Group):
    """Lists commands as they were written; a misspelt one is answered with the nearest right one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            known = self.list_commands(ctx)
            raise click.UsageError(f"no command {name!r}{did_you_mean_or_all(name, known)}", ctx)
        return super().resolve_command(ctx, args)


class Root(SuggestingGroup):
    """Imports a command when it is asked for; asks the plugins for one that is not ours."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
            assert isinstance(command, click.Command)
            return command
        if cmd_name not in self.commands and not ctx.resilient_parsing:
            add_plugin_commands(ctx, self)
        return super().get_command(ctx, cmd_name)


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(message="supervisor %(version)s", version=None, package_name="job-supervisor")
@config_option
@click.pass_context
def root(ctx: click.Context, config: Any) -> None:
    """Supervised background jobs: run a folder of plain Python functions as workers."""
    ctx.ensure_object(CommandContext).config = config


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    code = _run(arguments)
    if (error := output_error()) is not None:
        _complain([f"standard output: {error.strerror}"])
        return OUTPUT_LOST if code is None else code
    return code or 0


def _run(arguments: Sequence[str] | None) -> int | None:
    """The exit code; None of a command that has done no more than print."""
    context = CommandContext()
    try:
        with root.make_context(
            "supervisor", list(sys.argv[1:] if arguments is None else arguments), obj=context
        ) as ctx:
            code = root.invoke(ctx)
        sys.stdout.flush()
        return code if isinstance(code, int) else None
    except OutputLost:
        return None
    except click.exceptions.Exit as end:
        return end.exit_code or None
    except click.ClickException as error:
        error.show(shown := io.StringIO())
        click.echo(context.shown(shown.getvalue()), err=True, nl=False)
        return MISTAKE
    except ConfigError as error:
        return _complain(map(context.shown, error.errors))
    except (StoreError, NotJSON) as error:
        return _complain([context.shown(str(error))])
    except NoForkserver as error:
        _complain([context.shown(str(error))])
        return FATAL
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception:
        click.echo(context.shown(traceback.format_exc()), err=True, nl=False)
        return FATAL


def _complain(errors: Iterable[str]) -> int:
    for error in errors:
        click.echo(f"Error: {error}", err=True)
    return MISTAKE
