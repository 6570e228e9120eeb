"""The state of one command: its settings, and the secrets that it must not print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from supervisor.cli.exit_codes import MISTAKE
from supervisor.cli.render import escaped
from supervisor.config.loading import load as load_config
from supervisor.config.settings import Settings
from supervisor.errors import ConfigError
from supervisor.text.redaction import NO_SECRETS, Mask


class UserMistake(click.ClickException):
    exit_code = MISTAKE


@dataclass(slots=True)
class CommandContext:
    """`config` is the file named before the command, `mask` hides the secrets of the settings in use, and calls of a store that
    is unavailable are tried again for `store_timeout` seconds."""

    config: Path | None = None
    mask: Mask = NO_SECRETS
    store_timeout: float = 10.0

    def shown(self, text: str) -> str:
        """Return text of any origin without secrets, and without characters that control a terminal."""
        return "\n".join(map(escaped, self.mask(text).split("\n")))


def current_context() -> CommandContext:
    """Return the state of the command that runs, or an empty one outside of any."""
    current = click.get_current_context(silent=True)
    context = current.find_root().obj if current else None
    return context if isinstance(context, CommandContext) else CommandContext()


def echo(text: str, *, err: bool = False) -> None:
    """Print text of which parts may come from anywhere: from a config, a plugin or a job."""
    click.echo(current_context().shown(text), err=err)


def masked(text: str) -> str:
    """Return the text without the secrets of the settings in use."""
    return current_context().mask(text)


def load_settings(config: Path | None, load: Callable[[Path | None], Settings] = load_config) -> Settings:
    """Load the file named after the command, else the one named before it, else the one that a search finds."""
    context = current_context()
    try:
        settings = load(context.config if config is None else config)
    except ConfigError as error:
        context.mask = Mask(error.settings.secrets if error.settings else ())
        raise
    context.mask = Mask(settings.secrets)
    return settings
