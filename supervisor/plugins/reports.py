"""What became of each plugin, and what of it has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from supervisor.handlers import HandlerInfo


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What became of one plugin source. `error` is None if it loaded; then `line` and `traceback` say where it failed.

    With handlers beside an error, those serve: only what the error names does not.
    """

    source: str
    handlers: tuple[HandlerInfo, ...] = ()
    hooks: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    error: str | None = None
    line: int | None = None
    traceback: str = ""
    warnings: tuple[str, ...] = field(default=())


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
