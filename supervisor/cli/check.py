"""supervisor check"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from supervisor.cli.context import (
    MISTAKE,
    config_option,
    echo,
    is_absent,
    load_settings,
    masked,
    private_files,
    store_file,
    use_store,
)
from supervisor.cli.plugin_scan import load_hooks, place, scan
from supervisor.cli.render import block
from supervisor.config.file_permissions import open_to_others
from supervisor.config.settings import Settings
from supervisor.errors import ConfigError, NoForkserver, StoreError, StoreMissing
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.reports import SourceReport
from supervisor.stores.protocol import Store
from supervisor.stores.transfer import Transferable, TransferRecord, closed_message
from supervisor.text.suggestions import did_you_mean


@click.command()
@config_option
def check(config: Path | None) -> int:
    """Check the config, the plugins and the store; say everything that is wrong."""
    checks = _Findings()
    try:
        settings = load_settings(config)
        checks.fine(f"config: {settings.path or 'none found, so all defaults'}")
    except ConfigError as error:
        checks.wrong(*error.errors)
        if error.settings is None:
            return checks.end()
        settings = error.settings
    try:
        reports = scan(settings)
    except ConfigError as error:  # root would import what others may change
        checks.wrong(*error.errors)
        return checks.end()
    except NoForkserver as error:
        checks.wrong(str(error))
        return checks.end()
    _check_plugins(reports, checks)
    _check_handlers(settings, reports, checks)
    _check_sinks(settings, load_hooks(settings, reports, frozenset({"supervisor_sinks"})), checks)
    _check_store(settings, checks)
    for warning in open_to_others(private_files(settings)):
        echo(f"Warning: {warning}", err=True)
    return checks.end()


class _Findings:
    def __init__(self) -> None:
        self.mistakes = 0

    def fine(self, text: str) -> None:
        echo(text)

    def wrong(self, *errors: str) -> None:
        self.mistakes += len(errors)
        for error in errors:
            echo(f"Error: {error}", err=True)

    def end(self) -> int:
        if self.mistakes:
            click.echo(f"{self.mistakes} mistake{'s' if self.mistakes > 1 else ''}", err=True)
            return MISTAKE
        click.echo("all right")
        return 0


def _check_plugins(reports: list[SourceReport], checks: _Findings) -> None:
    for report in reports:
        brought = [info.name for info in report.handlers] + list(report.hooks)
        if report.error is None:
            checks.fine(f"plugin: {report.source}: {', '.join(brought) or 'no handlers and no hooks'}")
        else:
            checks.wrong(f"{place(report)}: {report.error}")
            if report.traceback:
                click.echo("", err=True)
                block(masked(report.traceback), err=True)
        for warning in report.warnings:
            echo(f"Warning: {report.source}: {warning}", err=True)


def _check_handlers(settings: Settings, reports: list[SourceReport], checks: _Findings) -> None:
    found = [info for report in reports for info in report.handlers]
    for info in found:
        checks.wrong(*(f"{info.file}:{info.line}: {problem}" for problem in settings.heartbeat_problems(info)))
    known = {info.name for info in found}
    for name in settings.handlers:
        if name not in known:
            checks.wrong(f"{settings.path}: handlers.{name}: no plugin brings this handler{did_you_mean(name, known)}")


def _check_sinks(settings: Settings, manager: PluginManager, checks: _Findings) -> None:
    """Their types and keys; none is opened. Those of our own are built, which opens nothing: a plugin's may connect."""
    from supervisor.dead_letters.opening import BuiltInSinks

    manager.register(BuiltInSinks(), BuiltInSinks.NAME)
    own = list(BuiltInSinks().supervisor_sinks().values())
    types = manager.merged("supervisor_sinks")
    for sink in settings.dlq.sinks:
        where = f"{settings.path}: {sink.key}"
        if sink.type not in types:
            hint = did_you_mean(sink.type, types) or f"; expected one of {', '.join(sorted(types))}"
            checks.wrong(f"{where}.type: no plugin brings a sink {sink.type!r}{hint}")
            continue
        build = types[sink.type]
        problem = _call_problem(build, sink.options)
        if problem is None and settings.dlq.active and build in own:
            problem = _build_problem(build, sink.options)
        if problem:
            checks.wrong(f"{where}: sink {sink.type!r}: {problem}")


def _call_problem(build: Callable[..., Any], options: dict[str, Any]) -> str | None:
    try:
        signature = inspect.signature(build)
    except (ValueError, TypeError):
        return None
    try:
        signature.bind(**options)
    except TypeError as error:
        takes = ", ".join(signature.parameters)
        return f"{error}; it takes {takes or 'no keys'}"
    return None


def _build_problem(build: Callable[..., Any], options: dict[str, Any]) -> str | None:
    try:
        build(**options).close()
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _check_store(settings: Settings, checks: _Findings) -> None:
    shown = settings.store.shown
    if settings.store.scheme == "memory":
        checks.fine(f"store: {shown}: lives as long as one supervisor; nothing else can enqueue")
        return
    file = store_file(settings)
    if file is not None and is_absent(file):
        if file.parent.is_dir() and os.access(file.parent, os.W_OK):
            checks.fine(f"store: {shown}: {file} will be created")
        else:
            checks.wrong(f"store: {shown}: {file.parent} is not a directory that can be written to")
        return
    try:
        transfer_record = use_store(settings, _transfer_record)
        if transfer_record is None:
            checks.fine(f"store: {shown}: reachable")
        else:
            checks.wrong(f"store: {shown}: {closed_message(transfer_record.target)}")
    except StoreMissing as missing:
        checks.fine(f"store: {missing}; it will be created")
    except StoreError as error:
        checks.wrong(f"store: {error}")


def _transfer_record(store: Store) -> TransferRecord | None:
    store.paused()
    return store.transfer_record() if isinstance(store, Transferable) else None
