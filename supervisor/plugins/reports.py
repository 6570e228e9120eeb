"""Reports about the loading of each plugin, and the comparison of new reports with old ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from supervisor.config.loading import without_config
from supervisor.config.settings import Settings, path_of
from supervisor.handlers import HandlerInfo


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The handlers and hooks of a source. `error` is None if it was loaded; `line` and `traceback` belong to the error.

    The handlers in a report with an error are in use; only those that the error names are not.
    """

    source: str
    handlers: tuple[HandlerInfo, ...] = ()
    hooks: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    error: str | None = None
    line: int | None = None
    traceback: str = ""
    warnings: tuple[str, ...] = ()


def nothing_served(reports: Sequence[SourceReport], settings: Settings) -> tuple[str, str] | None:
    """Return where plugins were looked for, and a warning, if none of them has a handler."""
    if any(report.handlers for report in reports):
        return None
    looked = ", ".join(str(path_of(path, settings.base)) for path in settings.plugins.paths) or "plugins"
    config = without_config(settings) if settings.path is None else f"config: {settings.path}"
    return looked, f"no handler there, nor in an installed package, so no job can run; {config}"


def same_plugins(one: Sequence[SourceReport], other: Sequence[SourceReport]) -> bool:
    """Return whether both are the same reports, in any order."""
    return len(one) == len(other) and not changed_reports(one, other)


def changed_reports(reports: Sequence[SourceReport], before: Sequence[SourceReport]) -> list[SourceReport]:
    """Return the reports whose source had another report before, or none."""
    known = {report.source: _found(report) for report in before}
    return [report for report in reports if known.get(report.source) != _found(report)]


def _found(report: SourceReport) -> SourceReport:
    """Return the report without the fields that may differ between imports of the same file."""
    return replace(report, traceback="", warnings=())


def reports_from(values: Sequence[Any]) -> list[SourceReport]:
    """Return reports that another process has sent as JSON. Raises ValueError if they are malformed: a plugin may forge them."""
    try:
        reports = [_report(**value) for value in values]
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None
    infos = [info for report in reports for info in report.handlers]
    texts = [
        text for it in reports for text in (it.source, it.traceback, it.error or "", *it.hooks, *it.sinks, *it.warnings)
    ]
    texts += [text for info in infos for text in (info.name, info.file)]
    lines = [it.line or 0 for it in reports] + [info.line for info in infos]
    objects = [info.options for info in infos] + [info.schema or {} for info in infos]
    if {*map(type, texts)} - {str} or {*map(type, lines)} - {int} or {*map(type, objects)} - {dict}:
        raise ValueError("expected texts, lines that are integers, and options and schemas that are objects")
    return reports


def _report(handlers: list[Any], hooks: list[Any], sinks: list[Any], warnings: list[Any], **rest: Any) -> SourceReport:
    infos = tuple(HandlerInfo(**info) for info in handlers)
    return SourceReport(handlers=infos, hooks=tuple(hooks), sinks=tuple(sinks), warnings=tuple(warnings), **rest)
