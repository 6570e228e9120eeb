"""The state of one command: its settings, and the secrets that it must not print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from supervisor.cli.exit_codes import FATAL, MISTAKE, UNAVAILABLE
from supervisor.cli.render import escaped
from supervisor.config.loading import load as load_config
from supervisor.config.settings import Settings
from supervisor.errors import ConfigError, StoreBroken, StoreDamaged, StoreUnavailable, StoreUnsure
from supervisor.text.redaction import NO_SECRETS, Mask


class UserMistake(click.ClickException):
    exit_code = MISTAKE


def code_of(error: Exception) -> int:
    """Return the exit code of a command that ends with this error of a store, or of what was written."""
    if isinstance(error, StoreUnsure):
        return FATAL
    is_mistake = isinstance(error, StoreBroken) and not isinstance(error, StoreDamaged)
    return UNAVAILABLE if isinstance(error, StoreUnavailable) and not is_mistake else MISTAKE


@dataclass(slots=True)
class CommandContext:
    """The state of one command. `config` is the file that the command line names, `mask` hides the secrets of the settings in use,
    and calls of a store that is unavailable are tried again for `store_timeout` seconds."""

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
    """Print text that may have parts from a config, a plugin or a job: without secrets and control characters."""
    click.echo(current_context().shown(text), err=err)


def load_settings(load: Callable[[Path | None], Settings] = load_config) -> Settings:
    """Load the file that the command line names, else the one that a search finds."""
    context = current_context()
    try:
        settings = load(context.config)
    except ConfigError as error:
        context.mask = Mask(error.settings.secrets if error.settings else ())
        raise
    context.mask = Mask(settings.secrets)
    return settings
