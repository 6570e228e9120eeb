"""Build the configured sinks from the types of plugins; the built-in types are registered like those of a plugin."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from supervisor.config.settings import Settings, SinkSettings
from supervisor.dead_letters.file_sink import FileSink
from supervisor.dead_letters.kafka_sink import KafkaSink
from supervisor.dead_letters.webhook_sink import WebhookSink
from supervisor.hooks import Sink, hookimpl
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.validation import location
from supervisor.text.names import did_you_mean_or_all
from supervisor.text.units import format_duration


class BuiltInSinks:
    """The plugin of the package itself."""

    NAME = "built-in sinks"

    @hookimpl
    def supervisor_sinks(self) -> Mapping[str, type[Sink]]:
        return {"file": FileSink, "kafka": KafkaSink, "webhook": WebhookSink}


class SinkBuilder:
    """Builds the sinks, unless they are not in use. `build` is called in a thread, since a constructor may block: `sinks` by name, and
    `errors`, a message for every one that is wrong, have what was found so far."""

    def __init__(self, settings: Settings, plugins: PluginManager) -> None:
        self.sinks: dict[str, Sink] = {}
        self.errors: list[str] = []
        self._settings, self._plugins = settings, plugins
        self._under_way = sink_key(settings, "dlq.sinks")

    def build(self) -> None:
        """First find what shows without a call, so that a constructor that blocks hides none of it."""
        types = self._plugins.merged("supervisor_sinks")
        fit = [sink for sink in self._settings.dlq.sinks if self._fits(sink, types)]
        for sink in fit if self._settings.dlq.active else ():
            where, build = sink_key(self._settings, sink.key), types[sink.type]
            self._under_way = f"{where}: sink {sink.name!r} of type {sink.type!r}{_place(build)}"
            try:
                self.sinks[sink.name] = build(**sink.options)
            except (Exception, SystemExit) as error:
                self.errors.append(f"{where}: sink {sink.type!r} can't be built: {type(error).__name__}: {error}")

    def errors_in_time(self, ended: bool) -> list[str]:
        """Return the errors at the end of the time for imports; `ended` is whether `build` has returned."""
        if ended:
            return self.errors
        limit = format_duration(self._settings.plugins.import_timeout)
        late = f"{self._under_way}: its constructor has not returned within {limit} (plugins.import_timeout)"
        return [*self.errors, late]

    def _fits(self, sink: SinkSettings, types: Mapping[str, Callable[..., Sink]]) -> bool:
        where = sink_key(self._settings, sink.key)
        if sink.type not in types:
            hint = did_you_mean_or_all(sink.type, sorted(types))
            self.errors.append(f"{where}.type: no plugin has a sink {sink.type!r}{hint}")
            return False
        if problem := _call_problem(types[sink.type], sink.options):
            self.errors.append(f"{where}: sink {sink.type!r}: {problem}")
        return problem is None


def close_sinks(sinks: Iterable[Sink]) -> None:
    for built in sinks:
        with suppress(Exception):
            built.close()


def sink_key(settings: Settings, key: str) -> str:
    """Return the key of a sink with the file that has it."""
    return f"{settings.path}: {key}" if settings.path else key


def _place(build: Callable[..., Any]) -> str:
    """Return the file and the line of a constructor, as an addition to a message."""
    file, line = location(build.__init__ if inspect.isclass(build) else build)
    return f" ({file}:{line})" if file else ""


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
