"""Build the configured sinks from the types of plugins; the built-in types are registered like those of a plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from supervisor.config.settings import Settings
from supervisor.dead_letters.file_sink import FileSink
from supervisor.dead_letters.sink_runner import SinkRunner
from supervisor.errors import ConfigError
from supervisor.hooks import Sink, hookimpl
from supervisor.plugins.manager import PluginManager


class BuiltInSinks:
    """The plugin of the package itself."""

    NAME = "built-in sinks"

    @hookimpl
    def supervisor_sinks(self) -> Mapping[str, type[Sink]]:
        return {"file": FileSink}


def open_sinks(
    settings: Settings, plugins: PluginManager, on_build: Callable[[str], None] = lambda key: None
) -> list[SinkRunner]:
    """Build the sinks and return their runners. `on_build` is called with the key of each before it is built: a constructor may
    block. Raises ConfigError with a message for every sink that can't be built."""
    if not settings.dlq.active:
        return []
    types = plugins.merged("supervisor_sinks")
    sinks: list[tuple[str, Sink]] = []
    errors = []
    for sink in settings.dlq.sinks:
        build = types.get(sink.type)
        if build is None:
            errors.append(
                f"{sink.key}.type: no plugin has a sink {sink.type!r}; expected one of {', '.join(sorted(types))}"
            )
            continue
        on_build(sink.key)
        try:
            sinks.append((sink.name, build(**sink.options)))
        except (Exception, SystemExit) as error:
            errors.append(f"{sink.key}: sink {sink.type!r} can't be built: {type(error).__name__}: {error}")
    if errors:
        for _, built in sinks:
            with suppress(Exception):
                built.close()
        raise ConfigError(errors)
    return [SinkRunner(name, built) for name, built in sinks]
