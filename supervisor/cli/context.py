"""What every command needs: the config, the store, the plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from supervisor.cli.render import safe
from supervisor.config.loading import load as load_config
from supervisor.config.settings import Settings
from supervisor.errors import ConfigError, StoreError
from supervisor.hooks import COMMAND_HOOKS
from supervisor.text.names import NAME, is_name
from supervisor.text.redaction import NO_SECRETS, Mask
from supervisor.text.strict_json import MAX_INTEGER

if TYPE_CHECKING:
    from supervisor.stores.protocol import Store

MISTAKE = 2

TIMEOUT = 10.0  # seconds

F = TypeVar("F", bound=Callable[..., Any])
Answer = TypeVar("Answer")


class UserMistake(click.ClickException):
    exit_code = MISTAKE


@dataclass(slots=True)
class CommandContext:
    """`config` is what was given before the command's name, `mask` keeps the secrets of the settings in use."""

    config: Path | None = None
    mask: Mask = NO_SECRETS

    def shown(self, text: str) -> str:
        """Text from anywhere, fit for a terminal: it keeps secrets, and neither moves the cursor nor recolours anything."""
        return "\n".join(map(safe, self.mask(text).split("\n")))


def echo(text: str, *, err: bool = False) -> None:
    """Print text with parts from anywhere."""
    click.echo(_context().shown(text), err=err)


def masked(text: str) -> str:
    """Without the secrets of the settings in use."""
    return _context().mask(text)


def _context() -> CommandContext:
    current = click.get_current_context(silent=True)
    context = current.find_root().obj if current else None
    return context if isinstance(context, CommandContext) else CommandContext()


def config_option(command: F) -> F:
    return click.option(
        "-c",
        "--config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Configuration; otherwise $SUPERVISOR_CONFIG, ./supervisor.yaml or ./etc/supervisor.yaml.",
    )(command)


json_option = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
force_option = click.option("--force", is_flag=True, help="Also jobs whose dead letter no sink has yet.")


COUNT = click.IntRange(min=1, max=MAX_INTEGER)
job_ids = click.argument("ids", nargs=-1, required=True, type=COUNT, metavar="ID...")


def read_with(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """A callback for an option: its text as `parse` reads it."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return read


def name_of(text: str) -> str:
    """Of a queue or a handler."""
    if not is_name(text):
        raise ValueError(f"expected {NAME}, got {text!r}")
    return text


def load_settings(config: Path | None, load: Callable[[Path | None], Settings] = load_config) -> Settings:
    """Of the `-c` after the command's name, else of the one before it, else where a config is looked for."""
    context = _context()
    try:
        settings = load(context.config if config is None else config)
    except ConfigError as error:
        context.mask = Mask(error.settings.secrets if error.settings else ())
        raise
    context.mask = Mask(settings.secrets)
    return settings


def use_store(settings: Settings, use: Callable[[Store], Answer], *, create: bool = False) -> Answer:
    """What `use` makes of the store; tried again for a while if the store is busy. One that doesn't exist yet is refused
    unless `create`."""
    from supervisor.stores.opening import BUILT_IN, open_store

    _check_visible(settings, create)
    openers = {} if settings.store.scheme in BUILT_IN else _plugin_openers(settings)
    store = answer_of(lambda: open_store(settings.store, create=create, base=settings.base, openers=openers))
    try:
        return answer_of(lambda: use(store))
    finally:
        store.close()


def answer_of(call: Callable[[], Answer]) -> Answer:
    """Return what `call` returns; it is made again while the store is unavailable, for TIMEOUT seconds."""
    from supervisor.stores.opening import attempts_while_unavailable

    for attempt in attempts_while_unavailable(TIMEOUT):
        with attempt:
            answer = call()
    return answer


def store_file(settings: Settings) -> Path | None:
    """The database file of a SQLite store."""
    if settings.store.scheme != "sqlite":
        return None
    return settings.base / (settings.store.url or "").removeprefix("sqlite:///")


def is_absent(file: Path) -> bool:
    """Whether there is nothing, for all that can be told; else opening it tells what is wrong."""
    try:
        return not file.exists()
    except OSError:
        return False


def private_files(settings: Settings) -> list[Path]:
    """Where payloads are written to."""
    dead_letters = [sink.options.get("path") for sink in settings.dlq.sinks if sink.type == "file"]
    return [
        path for path in (store_file(settings), *(Path(text) for text in dead_letters if isinstance(text, str))) if path
    ]


def _check_visible(settings: Settings, create: bool) -> None:
    if settings.store.scheme == "memory":
        raise StoreError("store: memory:// lives inside one process, so no other command can see its jobs")
    file = store_file(settings)
    if file is not None and not create and is_absent(file):
        raise StoreError(f"no store yet: {file} does not exist; supervisor enqueue and supervisor run create it")


def _plugin_openers(settings: Settings) -> Mapping[str, Any]:
    from supervisor.cli.plugin_scan import load_hooks, scan

    manager = load_hooks(settings, scan(settings), frozenset({"supervisor_stores"}))
    return manager.merged("supervisor_stores")


def add_plugin_commands(ctx: click.Context, group: click.Group) -> None:
    """Let the plugins add theirs. One that fails is named in a line and adds nothing."""
    from supervisor.cli.plugin_scan import load_hooks, scan

    settings = load_settings(ctx.params.get("config"))
    manager = load_hooks(settings, scan(settings), COMMAND_HOOKS)
    manager.call("supervisor_commands", group=group)
