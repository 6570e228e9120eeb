"""What became of the plugins, as events; and what of it is news."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from supervisor.config.settings import Settings
from supervisor.events import Bus, PluginFailed, PluginLoaded, PluginWarning
from supervisor.plugins.manager import SourceReport


def emit_plugin_events(bus: Bus, reports: Sequence[SourceReport], settings: Settings) -> None:
    for report in reports:
        if report.error is not None:
            bus.emit(PluginFailed(report.source, report.line, report.error, report.traceback))
        if report.error is None or report.handlers:
            names = tuple(info.name for info in report.handlers)
            bus.emit(PluginLoaded(report.source, names, report.hooks))
        odd = [problem for info in report.handlers for problem in settings.heartbeat_problems(info)]
        for warning in (*report.warnings, *odd):
            bus.emit(PluginWarning(report.source, warning))


def same_plugins(one: Sequence[SourceReport], other: Sequence[SourceReport]) -> bool:
    """Whatever their order."""
    return len(one) == len(other) and not news(one, other)


def news(reports: Sequence[SourceReport], before: Sequence[SourceReport]) -> list[SourceReport]:
    """Those of which something else was found before, or nothing."""
    known = {report.source: _found(report) for report in before}
    return [report for report in reports if known.get(report.source) != _found(report)]


def _found(report: SourceReport) -> SourceReport:
    """Without what may differ from one import to the next and means nothing."""
    return replace(report, traceback="", warnings=())
