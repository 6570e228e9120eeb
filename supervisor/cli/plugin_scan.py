"""Examine plugins without risk: they are first imported in a process of their own, under the import timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from supervisor.cli.context import echo
from supervisor.config.file_permissions import require_trust
from supervisor.config.schedules_in_force import configured_payloads
from supervisor.config.settings import Settings
from supervisor.events import HookFailed
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager, load_parent_side
from supervisor.plugins.reports import SourceReport
from supervisor.workers.interface import WorkerOptions
from supervisor.workers.parent.backend import ForkserverBackend
from supervisor.workers.system import requirements


class Scanned(NamedTuple):
    """`misfits` are the index and the message of each payload that its handler would refuse, and `schedule_misfits` the name, the
    handler and the message of each such schedule."""

    reports: list[SourceReport]
    misfits: Sequence[Any]
    schedule_misfits: Sequence[Sequence[str]]


def scan(settings: Settings) -> list[SourceReport]:
    """Return what a forkserver finds in the plugins. No worker is started.

    Raises ConfigError if root must not import them, NoForkserver and SystemRefused.
    """
    return _scanned(settings).reports


def scan_with_schedules(settings: Settings) -> Scanned:
    """Do the same, and check the payloads of schedules. Raises what `scan` raises."""
    return _scanned(settings, schedules=configured_payloads(settings))


def misfits(settings: Settings, payloads: Sequence[tuple[str, str]]) -> list[tuple[int, str]]:
    """Return the index and the message of each payload (handler, JSON) that its handler would refuse. Raises what `scan` raises."""
    return [(index, message) for index, message in _scanned(settings, payloads).misfits]


def _scanned(
    settings: Settings, payloads: Sequence[tuple[str, str]] = (), schedules: Mapping[str, tuple[str, str]] | None = None
) -> Scanned:
    require_trust(settings)
    requirements.require()
    return asyncio.run(_scan(settings, payloads, schedules or {}))


async def _scan(
    settings: Settings, payloads: Sequence[tuple[str, str]], schedules: Mapping[str, tuple[str, str]]
) -> Scanned:
    options = WorkerOptions(
        plugins=settings.plugins.paths,
        base=str(settings.base),
        variables=settings.variables,
        import_timeout=settings.plugins.import_timeout,
        start=settings.workers.start,
        heartbeat=settings.workers.heartbeat,
        heartbeats={},
        result_limit=settings.limits.result,
        owner="scan",
        payloads=payloads,
        schedules=schedules,
    )
    backend = ForkserverBackend(options, _Silent(), asyncio.get_running_loop())
    try:
        return Scanned(list(await backend.start()), backend.misfits, backend.schedule_misfits)
    finally:
        await backend.stop()


class _Silent:
    """A listener that ignores what a forkserver does and prints. It has no methods for workers, since none is forked."""

    def forkserver_started(self, backend: Any, pid: int, reports: Sequence[SourceReport]) -> None: ...
    def forkserver_exited(self, pid: int, how: str) -> None: ...
    def forkserver_output(self, written: Any) -> None: ...


def load_hooks(settings: Settings, reports: Sequence[SourceReport], hooks: frozenset[str]) -> PluginManager:
    """Load the plugins that have some of these hooks into this process. An error is a warning on standard error."""
    manager = PluginManager(_warn)
    sources = discover(settings.plugins.paths, settings.base)
    for report in load_parent_side(manager, sources, reports, hooks):
        if report.error is not None:
            echo(f"Warning: {location(report)}: {report.error}", err=True)
    return manager


def location(report: SourceReport) -> str:
    """Return `file:line`, or the file alone if no line is known."""
    return f"{report.source}:{report.line}" if report.line else report.source


def _warn(failed: HookFailed) -> None:
    echo(f"Warning: {failed.plugin}: {failed.hook}: {failed.error}", err=True)
