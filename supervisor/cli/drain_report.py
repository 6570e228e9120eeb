"""The report of `run --drain`: counted from events, shown while it runs and printed at its end."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from supervisor.cli.context import echo
from supervisor.cli.render import STYLES, clipped, console
from supervisor.cli.standard_streams import STDERR
from supervisor.events import (
    DeadLettersFailed,
    DeadLettersPublished,
    Event,
    ForkserverStarted,
    JobsReleased,
    JobsSettled,
    LeasesRecovered,
    PluginFailed,
    StoreAvailableAgain,
    StoreBecameUnavailable,
    StoreCallFailed,
    StoreCallSucceeded,
    SupervisorStopped,
    SupervisorStopping,
    WorkerExited,
    WorkerStarted,
    WorkerWarning,
)
from supervisor.jobs import OUTCOME_STATE, Cause, JobState, Kind, Outcome
from supervisor.text.units import counted, format_duration
from supervisor.threads import start_thread

MAX_FAILURES = 10


class DrainReport:
    """A subscriber that counts the outcomes of jobs, and collects what went wrong."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._counts: Counter[str] = Counter()
        self._failures: list[str] = []
        self._plugin_errors: list[str] = []
        self._dead_letters: set[int] = set()
        self._sink_errors: dict[str, str] = {}
        self._unserved: dict[str, set[int]] = {}
        self._refused: dict[str, str] = {}
        self._unavailable = self._no_worker = ""
        self._worker_ready: bool | None = None  # until workers are to start
        self._stopping = False
        self._left = self._left_out = self._blocked = ""
        self._missing_handlers: list[str] = []
        self._code = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobsSettled | LeasesRecovered):
            self._count(event.outcomes)
        elif isinstance(event, JobsReleased):
            if event.reason == "unknown_handler":
                for lease in event.leases:
                    self._unserved.setdefault(lease.handler, set()).add(lease.id)
        elif isinstance(event, DeadLettersPublished):
            self._dead_letters.update(event.ids)
            self._sink_errors.pop(event.sink, None)
        elif isinstance(event, DeadLettersFailed):
            self._sink_errors[event.sink] = event.error
        elif isinstance(event, PluginFailed):
            where = f"{event.source}:{event.line}" if event.line else event.source
            self._plugin_errors.append(f"{where}: {event.error}")
        elif isinstance(event, SupervisorStopped):
            self._code, self._left, self._left_out, self._blocked = (
                event.code,
                event.left,
                event.left_out,
                event.blocked,
            )
            self._missing_handlers = [name for name in event.missing_handlers if not self._unserved.get(name)]
        elif isinstance(event, StoreBecameUnavailable | StoreAvailableAgain):
            self._unavailable = event.error if isinstance(event, StoreBecameUnavailable) else ""
        elif isinstance(event, SupervisorStopping):
            self._stopping = True
        elif isinstance(event, ForkserverStarted | WorkerStarted | WorkerExited | WorkerWarning):
            self._note_worker(event)
        elif isinstance(event, StoreCallFailed):
            self._refused[event.purpose] = event.error
        elif (
            isinstance(event, StoreCallSucceeded) and not self._stopping
        ):  # the end cancels claims, which counts as success
            self._refused.pop(event.purpose, None)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def line(self) -> str:
        """Return the counts so far."""
        parts = [
            f"{self._counts[name]:,} {name}"
            for name in ("succeeded", "failed", "retried", "snoozed")
            if self._counts[name]
        ]
        if delivered := len(self._dead_letters):
            parts.append(counted(delivered, "dead letter"))
        return ", ".join(parts) or ("no job has ended" if self._code else "no jobs")

    def print(self, *, failed_are_kept: bool = True) -> None:
        drained, style = ("not drained", "failed") if self._code else ("drained", "succeeded")
        line = f"{drained} in {format_duration(self.seconds)}: {self.line()}"
        console().print(line, style=STYLES[style], soft_wrap=True)
        for failure in self._failures:
            echo(f"  {failure}")
        if more := self._counts["failed"] - len(self._failures):
            click.echo(f"  ... and {more:,} more")
        if self._failures and failed_are_kept:
            click.echo("details of a job: supervisor jobs show ID")
        for error in self._plugin_errors:
            echo(f"plugin not loaded: {error}")
        for sink, error in self._sink_errors.items():
            echo(f"dead letters not delivered to {sink}: {error}")
        for handler, ids in self._unserved.items():
            if ids:
                click.echo(f"no plugin serves handler {handler!r}: {counted(len(ids), 'job')}")
        for handler in self._missing_handlers[:MAX_FAILURES]:
            echo(f"no plugin serves handler {handler!r}, and jobs that are left need it")
        for purpose, error in self._refused.items() if self._code else ():
            echo(f"the store failed to {purpose}: {error}")
        if self._code and self._unavailable:
            echo(f"the store is unavailable: {self._unavailable}")
        if self._code and self._worker_ready is False:
            echo(f"no worker became ready: {self._no_worker or 'see the log'}")
        if self._left:
            click.echo(f"left behind: {self._left}")
        if self._blocked:
            echo(self._blocked)
        if self._left_out:
            click.echo(f"left out: {self._left_out}")

    def _note_worker(self, event: ForkserverStarted | WorkerStarted | WorkerExited | WorkerWarning) -> None:
        """Remember why no worker became ready, until one does."""
        if isinstance(event, ForkserverStarted):
            self._worker_ready = bool(self._worker_ready)
        elif isinstance(event, WorkerStarted):
            self._worker_ready = True
        elif not self._worker_ready:
            self._no_worker = event.message if isinstance(event, WorkerWarning) else event.how

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        succeeded = JobState.SUCCEEDED  # looked up once: an enum takes long to look up
        others = [outcome for outcome in outcomes if outcome[OUTCOME_STATE] is not succeeded]
        self._counts["succeeded"] += len(outcomes) - len(others)
        for outcome in others:
            if outcome.state is JobState.FAILED:
                self._counts["failed"] += 1
                if len(self._failures) < MAX_FAILURES:
                    self._failures.append(_failure_line(outcome))
            elif outcome.kind is Kind.FAILED:
                self._counts["retried"] += 1
            elif outcome.kind is Kind.SNOOZED:
                self._counts["snoozed"] += 1
        if self._unserved:
            self._remove_served(outcomes)

    def _remove_served(self, outcomes: Sequence[Outcome]) -> None:
        """Remove the jobs that have run: a reload may have brought their handler."""
        for outcome in outcomes:
            failure, ids = outcome.failure, self._unserved.get(outcome.lease.handler)
            ran = outcome.kind is not Kind.RELEASED and (failure is None or failure.cause is not Cause.UNKNOWN_HANDLER)
            if ran and ids:
                ids.discard(outcome.lease.id)


def _failure_line(outcome: Outcome) -> str:
    lease, failure = outcome.lease, outcome.failure
    reason = ""
    if failure is not None:
        reason = ": ".join(part for part in (failure.cause.value, failure.type, clipped(failure.message)) if part)
    return f"job {lease.id} {lease.handler} failed at attempt {lease.attempt}: {reason}"


@contextmanager
def progress(report: DrainReport, shown: bool) -> Iterator[int]:
    """Keep the counts on the last line of the terminal, if `shown`. Yields the descriptor for the log, whose lines then appear
    above the counts."""
    if not shown:
        yield STDERR
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    out = Console(stderr=True, highlight=False, markup=False)
    reading, writing = os.pipe()
    with Live(console=out, get_renderable=lambda: Text(f"draining: {report.line()}", style="bold"), transient=True):

        def copy() -> None:
            with open(reading, encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    out.print(Text(line.rstrip("\n")), soft_wrap=True)

        copying = start_thread(copy, "log lines")
        try:
            yield writing
        finally:
            os.close(writing)
            copying.join()
