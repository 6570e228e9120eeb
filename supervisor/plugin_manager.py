"""Finds, loads and isolates plugins: directories, files, modules, entry points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """A handler as found: its name, its options as written (without the function), and where it is."""

    name: str
    options: dict[str, Any]
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What became of one plugin source. `error` is None if it loaded; then `line` and `traceback` say where it failed."""

    source: str
    handlers: tuple[HandlerInfo, ...] = ()
    hooks: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    error: str | None = None
    line: int | None = None
    traceback: str = ""
    warnings: tuple[str, ...] = field(default=())
