"""supervisor completion"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.context import CommandContext
from supervisor.config.loading import load
from supervisor.plugins.discovery import files_of_plugins

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

MAX_FILES = 200
MAX_BYTES = 1_000_000


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
        names = {*settings.handlers, *(name for file in islice(files, MAX_FILES) for name in handlers_in(file))}
    except Exception:  # a shell that completes shows no error
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def handlers_in(file: Path) -> Iterator[str]:
    """Yield the names of the functions below a decorator `handler`, and those that it gives. A file with a mistake has none."""
    try:
        if file.stat().st_size > MAX_BYTES:
            return
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if (name := _name_given(decorator, node.name)) is not None:
                    yield name


def _name_given(decorator: ast.expr, default: str) -> str | None:
    call = decorator if isinstance(decorator, ast.Call) else None
    used = call.func if call else decorator
    if (used.attr if isinstance(used, ast.Attribute) else getattr(used, "id", None)) != "handler":
        return None
    first = call.args[0] if call and call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else default
