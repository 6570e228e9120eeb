"""Run a handler in the process of a command: its log and its output go to standard error, its result to standard output."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from supervisor.cli.context import UserMistake, current_context, echo
from supervisor.cli.exit_codes import FATAL, INTERRUPTED
from supervisor.cli.job_output import progress_line
from supervisor.cli.render import print_block
from supervisor.cli.standard_streams import STDERR, STDOUT
from supervisor.client.new_jobs import enqueue_row
from supervisor.config.settings import Settings
from supervisor.errors import InvalidJob
from supervisor.jobs import Job, report_jobs_to
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.reports import SourceReport, nothing_served
from supervisor.telemetry.log_handler import TextFormat
from supervisor.text.names import did_you_mean_or_all
from supervisor.text.printable import json_line
from supervisor.text.strict_json import decode
from supervisor.text.units import format_duration
from supervisor.workers.child.alone import Interrupted, JobFailed, run_alone
from supervisor.workers.child.error_report import Error
from supervisor.workers.child.record_handler import RecordHandler
from supervisor.workers.child.stdio import flush_streams, install_streams

NO_ID = 0  # no job of a store has it
PROGRESS_INTERVAL = 1.0  # seconds


def call_here(settings: Settings, handler: str, payload: object) -> int | None:
    """Run the handler, and print its result or its failure; return the exit code of a failure. Raises UserMistake."""
    job = _job(settings, handler, payload)
    os.environ.update(settings.variables)
    try:
        with _output_on_stderr():
            result = _call(settings, job)
    except JobFailed as failed:
        _report(failed.kind, failed.error)
        return FATAL
    except Interrupted as interrupted:
        _echo_traceback(str(interrupted))
        return INTERRUPTED
    click.echo(json_line(result.encode()))
    return None


def _job(settings: Settings, handler: str, payload: object) -> Job:
    """Return the job that a worker would get if this was enqueued. Raises UserMistake if that would be refused."""
    try:
        row = enqueue_row(settings, {"handler": handler, "payload": payload})
    except InvalidJob as error:
        raise UserMistake(str(error)) from None
    return Job(NO_ID, row.handler, decode(row.payload.encode()), queue=row.queue, priority=row.priority)


def _call(settings: Settings, job: Job) -> str:
    records = _TerminalRecords(settings.log.level)
    records.install()
    plugins = PluginManager(records.report_hook)
    reports = plugins.load_all(discover(settings.plugins.paths, settings.base))
    is_known = job.handler in plugins.handlers
    for report in reports:
        if report.error is not None:
            _print_failure(report, "Warning" if is_known else "Error")
    if not is_known:
        nothing = nothing_served(reports, settings)
        hint = f": {': '.join(nothing)}" if nothing else did_you_mean_or_all(job.handler, sorted(plugins.handlers))
        raise UserMistake(f"handler {job.handler!r}: no plugin has it{hint}")
    records.job = job
    report_jobs_to(records)
    try:
        with _interruptible():
            return run_alone(plugins, job, settings.limits.result)
    finally:
        report_jobs_to(None)
        records.print_progress()


def _print_failure(report: SourceReport, level: str) -> None:
    from supervisor.cli.plugin_scan import location  # slow to import

    echo(f"{level}: {location(report)}: {report.error}", err=True)
    if report.traceback:
        print_block(current_context().mask(report.traceback), err=True)


def _report(kind: str, error: Error) -> None:
    _echo_traceback(error["traceback"])
    if kind == "snoozed":
        effect = "a job would run again then, with no retry counted"
    elif kind == "rejected" or not error.get("retryable", True):
        effect = "a job would fail for good"
    else:
        after = format_duration(error["after"]) if "after" in error else "its backoff"
        effect = f"a job would be retried after {after}, if it had a retry left"
    echo(f"Error: {kind}: {error['type']}: {' '.join(error['message'].split())} ({effect})", err=True)


def _echo_traceback(text: str) -> None:
    if text:
        echo(text.rstrip("\n"), err=True)


class _TerminalRecords(RecordHandler):
    """Writes the log to standard error as it comes, in the format of the supervisor's log."""

    def __init__(self, level: str) -> None:
        super().__init__(level, STDERR, "")
        self._stream = sys.stderr
        self._text = TextFormat(current_context().mask)
        self._progressed: Job | None = None
        self._printed_at = float("-inf")
        self.logged = self.log_for

    def progressed(self, job: Job) -> None:
        self._progressed = job
        if time.monotonic() - self._printed_at >= PROGRESS_INTERVAL:
            self.print_progress()

    def print_progress(self) -> None:
        """Print the last progress, unless it is printed already."""
        job, self._progressed = self._progressed, None
        if job is not None and (progress := job.last_progress) is not None:
            self._printed_at = time.monotonic()
            echo(f"progress: {progress_line(progress._asdict())}", err=True)

    def _send(self, level: int, level_name: str, logger: str, message: str, trace: str, of: Job | None = None) -> None:
        record = logging.LogRecord(logger, level, "", 0, message, None, None)
        record.levelname, record.fields = level_name, {"traceback": trace}
        self._stream.write(f"{self._text.format(record)}\n")


@contextmanager
def _output_on_stderr() -> Iterator[None]:
    """Send all that this process and its programs write to standard output to standard error, by the streams of a worker."""
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.stdout.flush()
    output = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    install_streams()
    try:
        yield
    finally:
        flush_streams()
        os.dup2(output, STDOUT)
        os.close(output)
        sys.stdin, sys.stdout, sys.stderr = streams


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, which it must not do while plugins are imported."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if before is signal.SIG_DFL:
            signal.signal(signal.SIGINT, before)
