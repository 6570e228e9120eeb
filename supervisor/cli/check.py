"""supervisor check"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from supervisor.cli.context import code_of, current_context, echo, load_settings
from supervisor.cli.exit_codes import MISTAKE, UNAVAILABLE
from supervisor.cli.options import config_option
from supervisor.cli.plugin_scan import load_hooks, location, scan
from supervisor.cli.render import print_block
from supervisor.cli.store_access import is_absent, private_files, use_store
from supervisor.config.contradictions import heartbeat_problems, url_problem
from supervisor.config.file_permissions import open_to_others
from supervisor.config.settings import Settings
from supervisor.dead_letters.opening import BuiltInSinks
from supervisor.errors import ConfigError, NoForkserver, StoreError, StoreMissing, StoreUnavailable
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.reports import SourceReport, nothing_served
from supervisor.stores.protocol import Store
from supervisor.stores.transfer import Transferable, TransferRecord, closed_message
from supervisor.text.names import did_you_mean, did_you_mean_or_all
from supervisor.workers.system import descriptors

MIN_SPACE = 1_000_000
"""Bytes of a disk: with less it counts as full."""


@click.command()
@config_option
def check() -> int:
    """Check the config, the plugins and the store, and print every mistake."""
    mistakes = _Mistakes()
    try:
        settings = load_settings()
        echo(f"config: {settings.path or 'none found, so all defaults'}")
    except ConfigError as error:
        mistakes.add(*error.errors)
        if error.settings is None:
            return mistakes.finish()
        settings = error.settings
    try:
        reports = scan(settings)
    except ConfigError as error:  # plugins that root must not import, since others may change them
        mistakes.add(*error.errors)
        return mistakes.finish()
    except NoForkserver as error:
        mistakes.add(str(error))
        return mistakes.finish()
    echo(settings.workers.count_shown)
    _check_descriptors(settings, mistakes)
    _check_plugins(settings, reports, mistakes)
    _check_handlers(settings, reports, mistakes)
    _check_sinks(settings, load_hooks(settings, reports, frozenset({"supervisor_sinks"})), mistakes)
    _check_store(settings, mistakes)
    for warning in open_to_others(private_files(settings)):
        echo(f"Warning: {warning}", err=True)
    return mistakes.finish()


class _Mistakes:
    """Prints mistakes one by one, and counts them."""

    def __init__(self) -> None:
        self._number = 0
        self._unavailable = False

    def add(self, *errors: str) -> None:
        self._number += len(errors)
        for error in errors:
            echo(f"Error: {error}", err=True)

    def add_error_of_store(self, error: StoreError) -> None:
        """Add an error that may be no mistake, but an outage."""
        if code_of(error) == UNAVAILABLE:
            self._unavailable = True
            echo(f"Error: store: {error}", err=True)
        else:
            self.add(f"store: {error}")

    def finish(self) -> int:
        """Print the result, and return the exit code."""
        if self._number:
            click.echo(f"{self._number} mistake{'s' if self._number > 1 else ''}", err=True)
            return MISTAKE
        if self._unavailable:
            click.echo("no mistake, but the store is unavailable", err=True)
            return UNAVAILABLE
        click.echo("all right")
        return 0


def _check_descriptors(settings: Settings, mistakes: _Mistakes) -> None:
    workers = settings.workers.count
    shortage = descriptors.shortage(workers)
    if shortage is not None and workers > descriptors.most_workers():
        mistakes.add(shortage)
    elif shortage is not None:
        echo(f"Warning: {shortage}", err=True)


def _check_plugins(settings: Settings, reports: list[SourceReport], mistakes: _Mistakes) -> None:
    for report in reports:
        names = [info.name for info in report.handlers] + list(report.hooks)
        if report.error is None:
            echo(f"plugin: {report.source}: {', '.join(names) or 'no handlers and no hooks'}")
        else:
            mistakes.add(f"{location(report)}: {report.error}")
            if report.traceback:
                click.echo("", err=True)
                print_block(current_context().mask(report.traceback), err=True)
        for warning in report.warnings:
            echo(f"Warning: {report.source}: {warning}", err=True)
    if nothing := nothing_served(reports, settings):
        echo("Warning: " + ": ".join(nothing), err=True)


def _check_handlers(settings: Settings, reports: list[SourceReport], mistakes: _Mistakes) -> None:
    handlers = [info for report in reports for info in report.handlers]
    for info in handlers:
        mistakes.add(*(f"{info.file}:{info.line}: {problem}" for problem in heartbeat_problems(settings, info)))
    known = {info.name for info in handlers}
    for name in settings.handlers:
        if name not in known:
            hint = did_you_mean(name, known)
            mistakes.add(f"{settings.path}: handlers.{name}: no plugin has this handler{hint}")


def _check_sinks(settings: Settings, manager: PluginManager, mistakes: _Mistakes) -> None:
    """Check the types and keys of sinks. Only built-in sinks are built, which opens nothing: a plugin's sink might connect."""
    manager.register(BuiltInSinks(), BuiltInSinks.NAME)
    built_in = list(BuiltInSinks().supervisor_sinks().values())
    types = manager.merged("supervisor_sinks")
    for sink in settings.dlq.sinks:
        where = f"{settings.path}: {sink.key}"
        if sink.type not in types:
            hint = did_you_mean_or_all(sink.type, sorted(types))
            mistakes.add(f"{where}.type: no plugin has a sink {sink.type!r}{hint}")
            continue
        build = types[sink.type]
        problem = _call_problem(build, sink.options)
        if problem is None and settings.dlq.active and build in built_in:
            problem = _build_problem(build, sink.options)
        if problem:
            mistakes.add(f"{where}: sink {sink.type!r}: {problem}")


def _call_problem(build: Callable[..., Any], options: dict[str, Any]) -> str | None:
    try:
        signature = inspect.signature(build)
    except (ValueError, TypeError):
        return None
    try:
        signature.bind(**options)
    except TypeError as error:
        return f"{error}; it takes {', '.join(signature.parameters) or 'no keys'}"
    return None


def _build_problem(build: Callable[..., Any], options: dict[str, Any]) -> str | None:
    try:
        build(**options).close()
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _check_store(settings: Settings, mistakes: _Mistakes) -> None:
    if settings.store.url is not None and url_problem(settings.store.url):
        return  # a mistake of the config, so it is named already
    shown = settings.store.shown
    for folder in {file.parent for file in private_files(settings)}:
        if _is_full(folder):
            mistakes.add_error_of_store(StoreUnavailable(f"{folder}: its disk is full"))
    if settings.store.scheme == "memory":
        echo(f"store: {shown}: exists in one supervisor only, so no other process can enqueue")
        return
    file = settings.store_file
    if file is not None and is_absent(file):
        if file.parent.is_dir() and os.access(file.parent, os.W_OK):
            echo(f"store: {shown}: {file} will be created")
        else:
            mistakes.add(f"store: {shown}: {file.parent} is not a directory that can be written to")
        return
    try:
        record = use_store(settings, _transfer_record)
        if record is None:
            echo(f"store: {shown}: reachable")
        else:
            mistakes.add(f"store: {shown}: {closed_message(record.target)}")
    except StoreMissing as missing:
        if missing.obstacle:
            mistakes.add(f"store: {missing.obstacle}")
        else:
            echo(f"store: {missing}; it will be created")
    except StoreError as error:
        mistakes.add_error_of_store(error)


def _is_full(folder: Path) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    blocks = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    return blocks * disk.f_frsize < MIN_SPACE or (disk.f_files > 0 and disk.f_ffree == 0)


def _transfer_record(store: Store) -> TransferRecord | None:
    with store.transaction():  # a lock of another program keeps writers out, not readers
        store.paused()
    return store.transfer_record() if isinstance(store, Transferable) else None
