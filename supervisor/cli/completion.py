"""supervisor completion"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import click

from supervisor.cli.context import CommandContext
from supervisor.config.loading import load
from supervisor.plugins.discovery import files_of_plugins
from supervisor.plugins.handlers_in_files import handlers_in

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

MAX_FILES = 200


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes commands, options and handlers."""
    from click.shell_completion import get_completion_class

    from supervisor.cli.app import COMPLETION, root

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "supervisor", COMPLETION).source())


def complete_handler(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the handlers of the config and of the plugins' files, which are read and not imported, since that may take long."""
    from click.shell_completion import CompletionItem

    given = ctx.find_object(CommandContext)
    try:
        settings = load(given.config if given else None)
        files = files_of_plugins(settings.plugins.paths, settings.base)
        names = {*settings.handlers, *(name for file in islice(files, MAX_FILES) for name, _ in handlers_in(file))}
    except Exception:  # a shell that completes shows no error
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
