"""The group of all commands. A mistake of the user ends in one clear message and exit code 2, never in a traceback."""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Iterable, Sequence

import click
from click.shell_completion import shell_complete

from supervisor import __version__
from supervisor.cli.context import CommandContext, code_of, load_settings
from supervisor.cli.exit_codes import FATAL, INTERRUPTED, MISTAKE
from supervisor.cli.options import SuggestingGroup, config_option
from supervisor.cli.standard_streams import OutputLost, code_after_output
from supervisor.errors import ConfigError, NoForkserver, StoreError, SystemRefused
from supervisor.text.strict_json import NotJSON

COMMANDS = (
    "init",
    "run",
    "check",
    "call",
    "enqueue",
    "status",
    "top",
    "jobs",
    "dlq",
    "queues",
    "schedules",
    "plugins",
    "copy",
    "bench",
    "completion",
)
"""Each command is a function in a module; both have its name."""
COMPLETION = "_SUPERVISOR_COMPLETE"


class Root(SuggestingGroup):
    """A group that imports a built-in command when it is used, and loads the plugins for any other name."""

    command_class = None  # a plugin may define its commands as it likes

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module = importlib.import_module("supervisor.cli." + ("bench.command" if cmd_name == "bench" else cmd_name))
            command = getattr(module, cmd_name)
            assert isinstance(command, click.Command)
            return command
        if cmd_name not in self.commands and not ctx.resilient_parsing:
            self._add_plugin_commands(ctx)
        return super().get_command(ctx, cmd_name)

    def _add_plugin_commands(self, ctx: click.Context) -> None:
        """Let each plugin add its commands. If a plugin fails, print a warning."""
        from supervisor.cli.plugin_scan import load_hooks, scan
        from supervisor.hooks import COMMAND_HOOKS

        settings = load_settings()
        load_hooks(settings, scan(settings), COMMAND_HOOKS).call("supervisor_commands", group=self)


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="supervisor %(version)s")
@config_option
def root() -> None:
    """Run a folder of plain Python functions as supervised background workers."""


def run_command_line(arguments: Sequence[str] | None = None, context: CommandContext | None = None) -> int:
    """Run one command and return its exit code. The default arguments are those of this process.

    A shell that completes a command line asks by an environment variable.
    """
    if arguments is None and (instruction := os.environ.get(COMPLETION)):
        return shell_complete(root, {}, "supervisor", COMPLETION, instruction)
    return code_after_output(_run(sys.argv[1:] if arguments is None else arguments, context or CommandContext()))


def _run(arguments: Sequence[str], context: CommandContext) -> int | None:
    """Return the exit code, or None for a command that only printed."""
    try:
        with root.make_context("supervisor", list(arguments), obj=context) as ctx:
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
        return _report(map(context.shown, error.errors), MISTAKE)
    except (StoreError, NotJSON) as error:
        return _report([context.shown(str(error))], code_of(error))
    except (NoForkserver, SystemRefused) as error:
        return _report([context.shown(str(error))], FATAL)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception:
        click.echo(context.shown(traceback.format_exc()), err=True, nl=False)
        return FATAL


def _report(errors: Iterable[str], code: int) -> int:
    for error in errors:
        click.echo(f"Error: {error}", err=True)
    return code
