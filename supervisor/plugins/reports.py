"""Reports of what loading each plugin has found, and which of them have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from supervisor.handlers import HandlerInfo


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The handlers and hooks that a source of plugins brings. `error` is None if it loaded; otherwise `line` and `traceback` are those of the error.

    Handlers beside an error serve: only what the error names does not.
    """

    source: str
    handlers: tuple[HandlerInfo, ...] = ()
    hooks: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    error: str | None = None
    line: int | None = None
    traceback: str = ""
    warnings: tuple[str, ...] = ()


def same_plugins(one: Sequence[SourceReport], other: Sequence[SourceReport]) -> bool:
    """Return whether both are the same reports, in any order."""
    return len(one) == len(other) and not changed_reports(one, other)


def changed_reports(reports: Sequence[SourceReport], before: Sequence[SourceReport]) -> list[SourceReport]:
    """Return the reports whose source had another report before, or none."""
    known = {report.source: _found(report) for report in before}
    return [report for report in reports if known.get(report.source) != _found(report)]


def _found(report: SourceReport) -> SourceReport:
    """The report without what may differ between imports of the same file."""
    return replace(report, traceback="", warnings=())
