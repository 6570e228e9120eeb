"""supervisor check"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

import click

from supervisor.cli.context import code_of, current_context, echo, load_settings
from supervisor.cli.exit_codes import MISTAKE, UNAVAILABLE
from supervisor.cli.options import config_option
from supervisor.cli.plugin_scan import load_hooks, location, scan_with_schedules
from supervisor.cli.render import print_block
from supervisor.cli.store_access import is_absent, private_files, use_store
from supervisor.config.contradictions import handler_problems, url_problem
from supervisor.config.diagnostics import is_spoiled
from supervisor.config.document import Keys
from supervisor.config.file_permissions import open_to_others
from supervisor.config.misspelt import doubtful_queues, unknown_handlers
from supervisor.config.schedules_in_force import misfit_texts, schedule_warnings, schedules_of
from supervisor.config.settings import DlqSettings, Settings
from supervisor.config.without_effect import without_effect
from supervisor.dead_letters.file_sink import FileSink
from supervisor.dead_letters.opening import BuiltInSinks, SinkBuilder, close_sinks, sink_key
from supervisor.errors import ConfigError, NoForkserver, StoreError, StoreMissing, StoreUnavailable
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.reports import SourceReport, nothing_served
from supervisor.schedules.fire_times import MICROSECONDS, shown_timing
from supervisor.schedules.policy import Schedule
from supervisor.stores.protocol import Describes, Store, WithRights
from supervisor.stores.sinks import Sinks
from supervisor.stores.transfer import Transferable, closed_message
from supervisor.text.os_errors import not_writable
from supervisor.text.units import counted, format_duration, iso
from supervisor.threads import start_thread
from supervisor.workers.blame import HOST
from supervisor.workers.system import descriptors

MIN_SPACE = 1_000_000
"""Bytes of a disk: with less it counts as full."""


@click.command()
@config_option
def check() -> int:
    """Check the config, the plugins and the store, and print every mistake."""
    mistakes = _Mistakes()
    wrong: tuple[Keys, ...] = ()
    try:
        settings = load_settings()
        echo(f"config: {settings.path or 'none found, so all defaults'}")
    except ConfigError as error:
        mistakes.add(*error.errors)
        if error.settings is None:
            return mistakes.finish()
        settings, wrong = error.settings, error.wrong
    if not is_spoiled(("workers", "count"), wrong):
        echo(settings.workers.count_shown)
        _check_descriptors(settings, mistakes)
    if not is_spoiled(("plugins", "paths"), wrong) and not _check_code(settings, mistakes):
        return mistakes.finish()
    if not any(is_spoiled(("store", key), wrong) for key in ("url", "type")):
        _check_store(settings, mistakes)
        for warning in open_to_others(private_files(settings)):
            echo(f"Warning: {warning}", err=True)
    return mistakes.finish()


def _check_code(settings: Settings, mistakes: _Mistakes) -> bool:
    """Check the plugins, and what the config has about them. Return False if nothing can be found out about them."""
    try:
        scanned = scan_with_schedules(settings)
    except ConfigError as error:  # plugins that root must not import, since others may change them
        mistakes.add(*error.errors)
        return False
    except NoForkserver as error:
        mistakes.add(str(error))
        return False
    reports = scanned.reports
    _check_plugins(settings, reports, mistakes)
    _check_handlers(settings, reports, mistakes)
    if not mistakes.any:
        _print_schedules(settings, reports)
        mistakes.add(*misfit_texts(scanned.schedule_misfits))
    _check_sinks(settings, load_hooks(settings, reports, frozenset({"supervisor_sinks"})), mistakes)
    return True


class _Mistakes:
    """Prints mistakes one by one, and counts them."""

    def __init__(self) -> None:
        self._number = 0
        self._unavailable = False

    @property
    def any(self) -> bool:
        return self._number > 0

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
            click.echo(counted(self._number, "mistake"), err=True)
            return MISTAKE
        if self._unavailable:
            click.echo("no mistake, but the store is unavailable", err=True)
            return UNAVAILABLE
        click.echo("all right")
        return 0


def _check_descriptors(settings: Settings, mistakes: _Mistakes) -> None:
    workers = settings.workers.most
    shortage = descriptors.shortage(workers, settings.workers.count_keys)
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
        mistakes.add(*(f"{info.file}:{info.line}: {problem}" for problem in handler_problems(settings, info)))
    known = {info.name for info in handlers}
    mistakes.add(*unknown_handlers(settings, known))
    warnings = (*doubtful_queues(settings), *schedule_warnings(settings, known), *without_effect(settings, handlers))
    for warning in warnings:
        echo(f"Warning: {warning}", err=True)


def _print_schedules(settings: Settings, reports: list[SourceReport]) -> None:
    """Print when each schedule fires."""
    handlers = {info.name: info for report in reports for info in report.handlers}
    for it in schedules_of(settings, handlers).values():
        next_at = iso(it.timing.after(round(time.time() * MICROSECONDS))) or "none"
        facts = (it.handler, shown_timing(it.timing.text), *_extras_shown(it))
        echo(f"schedule: {it.name}: {', '.join(facts)}; the next time from now is {next_at}")


def _extras_shown(schedule: Schedule) -> Iterator[str]:
    """Yield what relates the jobs of the schedule to others. The values of headers may be secrets."""
    if schedule.key is not None:
        yield f"key {schedule.key}" + (", which a failed job holds" if schedule.on_failure == "hold" else "")
    if schedule.group is not None:
        yield f"group {schedule.group}"
    if schedule.tags:
        yield f"tags {' '.join(schedule.tags)}"
    if schedule.expires is not None:
        yield f"expires after {format_duration(schedule.expires)}"
    if schedule.headers:
        yield f"headers {' '.join(schedule.headers)}"


def _check_sinks(settings: Settings, manager: PluginManager, mistakes: _Mistakes) -> None:
    """Build the sinks as a supervisor does, under the same time limit, and close them."""
    manager.register(BuiltInSinks(), BuiltInSinks.NAME)
    builder = SinkBuilder(settings, manager)
    done, limit = Event(), settings.plugins.import_timeout

    def build() -> None:
        builder.build()
        builder.errors.extend(
            f"{sink_key(settings, sink.key)}: sink {sink.type!r}: {refused}"
            for sink in settings.dlq.sinks
            if isinstance(built := builder.sinks.get(sink.name), FileSink) and (refused := built.refused())
        )
        done.set()
        close_sinks(builder.sinks.values())

    building = start_thread(build, "check-sinks")
    mistakes.add(*builder.errors_in_time(done.wait(limit)))
    building.join(limit if done.is_set() else 0.0)


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
        if not file.parent.is_dir():
            mistakes.add(f"store: {shown}: {file.parent} is not a directory that can be written to")
        elif not os.access(file.parent, os.W_OK | os.X_OK):
            mistakes.add(f"store: {not_writable([file.parent])}")
        else:
            echo(f"store: {shown}: {file} will be created")
        return
    try:
        problems, facts = use_store(settings, lambda store: _examined(store, settings.dlq))
        for problem in problems:
            mistakes.add(f"store: {shown}: {problem}")
        if not problems:
            echo(f"store: {shown}: reachable")
        for fact in facts:
            echo(f"store: {fact}")
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


def _examined(store: Store, dlq: DlqSettings) -> tuple[list[str], list[str]]:
    """Return what keeps supervisors from using the store, and what else a person should know of it."""
    if isinstance(store, Describes):
        return store.obstacles(), store.describe(dlq)
    problem = _problem_of_store(store, dlq.names)
    return [problem] if problem else [], []


def _problem_of_store(store: Store, sinks: Sinks) -> str | None:
    """Return why no supervisor can use the store, or None. It registers as one does, in a transaction that is rolled back."""
    record = store.transfer_record() if isinstance(store, Transferable) else None
    if record is not None:
        return closed_message(record.target)
    if isinstance(store, WithRights) and (grants := store.missing_rights()):
        return f"its role lacks rights: let the owner run `{'; '.join(grants)}`"
    try:
        with suppress(_RollBack), store.transaction():
            store.join(f"check-{HOST}-{os.getpid()}-{secrets.token_hex(8)}", HOST, os.getpid(), sinks)
            raise _RollBack
    finally:
        store.leave()
    return None


class _RollBack(Exception):
    """Ends the transaction of a check."""
