"""The events that report which plugins were loaded."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.config.contradictions import heartbeat_problems
from supervisor.config.settings import Settings
from supervisor.events import Bus, PluginFailed, PluginLoaded, PluginWarning
from supervisor.plugins.reports import SourceReport


def emit_plugin_events(bus: Bus, reports: Sequence[SourceReport], settings: Settings) -> None:
    for report in reports:
        if report.error is not None:
            bus.emit(PluginFailed(report.source, report.line, report.error, report.traceback))
        if report.error is None or report.handlers:
            names = tuple(info.name for info in report.handlers)
            bus.emit(PluginLoaded(report.source, names, report.hooks))
        problems = [problem for info in report.handlers for problem in heartbeat_problems(settings, info)]
        for warning in (*report.warnings, *problems):
            bus.emit(PluginWarning(report.source, warning))
