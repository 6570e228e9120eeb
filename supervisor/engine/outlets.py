"""Builds the configured dead-letter sinks from what the plugins bring."""

from __future__ import annotations

from supervisor.config import ConfigError, Settings
from supervisor.engine.dead_letters import Outlet
from supervisor.plugin_manager import PluginManager


def open_outlets(settings: Settings, plugins: PluginManager) -> list[Outlet]:
    """Raises ConfigError that names every sink which can't be built."""
    if not settings.dlq.active:
        return []
    types = plugins.merged("supervisor_sinks")
    outlets, errors = [], []
    for sink in settings.dlq.sinks:
        build = types.get(sink.type)
        if build is None:
            errors.append(
                f"{sink.key}.type: no plugin brings a sink {sink.type!r}; expected one of {', '.join(sorted(types))}"
            )
            continue
        try:
            outlets.append(Outlet(sink.name, build(**sink.options)))
        except Exception as error:
            errors.append(f"{sink.key}: sink {sink.type!r} can't be built: {type(error).__name__}: {error}")
    if errors:
        for outlet in outlets:
            outlet.sink.close()
        raise ConfigError(errors)
    return outlets
