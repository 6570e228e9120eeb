"""Build the configured sinks from the types of plugins; the built-in types are registered like those of a plugin."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from supervisor.config.settings import Settings
from supervisor.dead_letters.file_sink import FileSink
from supervisor.dead_letters.sink_runner import SinkRunner
from supervisor.errors import ConfigError
from supervisor.hooks import Sink, hookimpl
from supervisor.plugins.manager import PluginManager
from supervisor.text.names import did_you_mean_or_all
from supervisor.text.units import format_duration


class BuiltInSinks:
    """The plugin of the package itself."""

    NAME = "built-in sinks"

    @hookimpl
    def supervisor_sinks(self) -> Mapping[str, type[Sink]]:
        return {"file": FileSink}


def build_sinks(
    settings: Settings, plugins: PluginManager, on_build: Callable[[str], None] = lambda key: None
) -> tuple[dict[str, Sink], list[str]]:
    """Build the sinks, unless they are not in use. Return them by name, and a message for every one that is wrong. `on_build` is
    called with the key of each before it is built: a constructor may block."""
    types = plugins.merged("supervisor_sinks")
    sinks: dict[str, Sink] = {}
    errors = []
    for sink in settings.dlq.sinks:
        where = sink_key(settings, sink.key)
        if sink.type not in types:
            hint = did_you_mean_or_all(sink.type, sorted(types))
            errors.append(f"{where}.type: no plugin has a sink {sink.type!r}{hint}")
            continue
        build = types[sink.type]
        if problem := _call_problem(build, sink.options):
            errors.append(f"{where}: sink {sink.type!r}: {problem}")
        elif settings.dlq.active:
            on_build(sink.key)
            try:
                sinks[sink.name] = build(**sink.options)
            except (Exception, SystemExit) as error:
                errors.append(f"{where}: sink {sink.type!r} can't be built: {type(error).__name__}: {error}")
    return sinks, errors


def close_sinks(sinks: Iterable[Sink]) -> None:
    for built in sinks:
        with suppress(Exception):
            built.close()


def sink_key(settings: Settings, key: str) -> str:
    """Return the key of a sink with the file that has it."""
    return f"{settings.path}: {key}" if settings.path else key


def not_built_in_time(settings: Settings, begun: Sequence[str]) -> str:
    """Return the message about the last sink that was begun."""
    limit = format_duration(settings.plugins.import_timeout)
    where = sink_key(settings, begun[-1] if begun else "dlq.sinks")
    return f"{where}: its constructor has not returned within {limit} (plugins.import_timeout)"


def open_sinks(settings: Settings, plugins: PluginManager, on_build: Callable[[str], None]) -> list[SinkRunner]:
    """Build the sinks and return their runners. Raises ConfigError with a message for every sink that can't be built."""
    if not settings.dlq.active:
        return []
    sinks, errors = build_sinks(settings, plugins, on_build)
    if errors:
        close_sinks(sinks.values())
        raise ConfigError(errors)
    return [SinkRunner(name, built) for name, built in sinks.items()]


def _call_problem(build: Callable[..., Any], options: Mapping[str, Any]) -> str | None:
    try:
        signature = inspect.signature(build)
    except (ValueError, TypeError):
        return None
    try:
        signature.bind(**options)
    except TypeError as error:
        return f"{error}; it takes {', '.join(signature.parameters) or 'no keys'}"
    return None
