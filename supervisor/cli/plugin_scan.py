"""Looks at the plugins from a safe distance: imported first in a process of their own, under the import time-out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from supervisor.cli.context import echo
from supervisor.config.file_permissions import require_trust
from supervisor.config.settings import Settings
from supervisor.events import HookFailed
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager, load_parent_side
from supervisor.plugins.reports import SourceReport


def scan(settings: Settings) -> list[SourceReport]:
    """What the nursery finds, without starting a worker. Raises ConfigError if root must not import them."""
    require_trust(settings)
    return asyncio.run(_scan(settings))


async def _scan(settings: Settings) -> list[SourceReport]:
    from supervisor.workers.interface import WorkerOptions
    from supervisor.workers.parent.backend import ForkserverBackend

    options = WorkerOptions(
        plugins=settings.plugins.paths,
        base=str(settings.base),
        variables=settings.variables,
        import_timeout=settings.plugins.import_timeout,
        start="fork",
        heartbeat=settings.workers.heartbeat,
        heartbeats={},
        result_limit=settings.limits.result,
        owner="scan",
    )
    backend = ForkserverBackend(options, _Quiet(), asyncio.get_running_loop())
    try:
        return list(await backend.start())
    finally:
        await backend.stop()


class _Quiet:
    """Hears what the nursery prints, and keeps it to itself. No worker is forked."""

    def forkserver_started(self, backend: Any, pid: int, reports: Sequence[SourceReport]) -> None: ...
    def forkserver_exited(self, pid: int, how: str) -> None: ...
    def forkserver_output(self, stream: str, lines: Sequence[str]) -> None: ...


def load_hooks(settings: Settings, reports: Sequence[SourceReport], hooks: frozenset[str]) -> PluginManager:
    """The plugins with some of these hooks, loaded here; what raises is named on standard error."""
    manager = PluginManager(_warn)
    sources = discover(settings.plugins.paths, settings.base)
    for report in load_parent_side(manager, sources, reports, hooks):
        if report.error is not None:
            echo(f"Warning: {place(report)}: {report.error}", err=True)
    return manager


def _warn(failed: HookFailed) -> None:
    echo(f"Warning: {failed.plugin}: {failed.hook}: {failed.error}", err=True)


def place(report: SourceReport) -> str:
    """file:line"""
    return f"{report.source}:{report.line}" if report.line else report.source


def with_sinks(settings: Settings, reports: Sequence[SourceReport]) -> list[SourceReport]:
    """The reports with the sink types that each plugin brings."""
    manager = load_hooks(settings, reports, frozenset({"supervisor_sinks"}))
    brought = dict(manager.call_each("supervisor_sinks"))
    return [replace(report, sinks=tuple(sorted(brought.get(report.source, ())))) for report in reports]
