"""What a drain did: counted from the events, shown while it runs and told at the end."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from supervisor.cli.context import echo
from supervisor.cli.render import STYLES, clipped, console
from supervisor.events import (
    DeadLettersFailed,
    DeadLettersPublished,
    Event,
    JobsReleased,
    JobsSettled,
    LeasesRecovered,
    PluginFailed,
    SupervisorStopped,
)
from supervisor.jobs import Cause, JobState, Kind, Outcome
from supervisor.text.units import format_duration

MAX_FAILURES = 10
STDERR = 2


class DrainReport:
    """A subscriber: counts what was settled."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.plugins: list[str] = []
        self.dead_letters: dict[str, set[int]] = {}
        self.sink_errors: dict[str, str] = {}
        self.unknown: dict[str, set[int]] = {}
        self.left = ""
        self.code = 0
        self.started = time.monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobsSettled | LeasesRecovered):
            succeeded = JobState.SUCCEEDED
            rest = [outcome for outcome in event.outcomes if outcome[7] is not succeeded]
            self.counts["succeeded"] += len(event.outcomes) - len(rest)
            for outcome in rest:
                self._count(outcome)
            if self.unknown:
                self._forget_served(event.outcomes)
        elif isinstance(event, JobsReleased):
            if event.reason == "unknown_handler":
                for lease in event.leases:
                    self.unknown.setdefault(lease.handler, set()).add(lease.id)
        elif isinstance(event, DeadLettersPublished):
            self.dead_letters.setdefault(event.sink, set()).update(event.ids)
            self.sink_errors.pop(event.sink, None)
        elif isinstance(event, DeadLettersFailed):
            self.sink_errors[event.sink] = event.error
        elif isinstance(event, PluginFailed):
            self.plugins.append(
                f"{event.source}:{event.line}: {event.error}" if event.line else f"{event.source}: {event.error}"
            )
        elif isinstance(event, SupervisorStopped):
            self.code, self.left = event.code, event.left

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def line(self) -> str:
        """The counts so far."""
        parts = [f"{self.counts[name]} {name}" for name in ("succeeded", "failed", "retried") if self.counts[name]]
        delivered = len(set().union(*self.dead_letters.values())) if self.dead_letters else 0
        if delivered:
            parts.append(f"{delivered} dead letter{'s' if delivered > 1 else ''}")
        return ", ".join(parts) or "no jobs"

    def print(self, *, failed_are_kept: bool = True) -> None:
        out = console()
        took = format_duration(self.seconds)
        style = STYLES["failed"] if self.code else STYLES["succeeded"]
        out.print(
            f"{'drained' if not self.code else 'not drained'} in {took}: {self.line()}", style=style, soft_wrap=True
        )
        for failure in self.failures:
            echo(f"  {failure}")
        if self.counts["failed"] > len(self.failures):
            click.echo(f"  ... and {self.counts['failed'] - len(self.failures)} more")
        if self.failures and failed_are_kept:
            click.echo("all about one: supervisor jobs show ID")
        for plugin in self.plugins:
            echo(f"plugin not loaded: {plugin}")
        for sink, error in self.sink_errors.items():
            echo(f"dead letters not delivered to {sink}: {error}")
        for handler, ids in self.unknown.items():
            if ids:
                click.echo(f"no plugin serves handler {handler!r}: {len(ids)} job{'s' if len(ids) > 1 else ''}")
        if self.left:
            click.echo(f"left behind: {self.left}")

    def _forget_served(self, outcomes: Sequence[Outcome]) -> None:
        """A reload may have brought their handler."""
        for outcome in outcomes:
            failure, ids = outcome.failure, self.unknown.get(outcome.lease.handler)
            ran = outcome.kind is not Kind.RELEASED and (failure is None or failure.cause is not Cause.UNKNOWN_HANDLER)
            if ran and ids:
                ids.discard(outcome.lease.id)

    def _count(self, outcome: Outcome) -> None:
        if outcome.state is JobState.FAILED:
            self.counts["failed"] += 1
            if len(self.failures) < MAX_FAILURES:
                self.failures.append(_tell(outcome))
        elif outcome.kind is Kind.FAILED:
            self.counts["retried"] += 1


def _tell(outcome: Outcome) -> str:
    lease, failure = outcome.lease, outcome.failure
    why = ""
    if failure is not None:
        why = ": ".join(part for part in (failure.cause.value, failure.type, clipped(failure.message)) if part)
    return f"job {lease.id} {lease.handler} failed at attempt {lease.attempt}: {why}"


@contextmanager
def progress(report: DrainReport, shown: bool) -> Iterator[int]:
    """Keep the counts in the last line of the terminal. Gives the descriptor to log to, so that log lines go above it."""
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

        copying = threading.Thread(target=copy, name="log lines", daemon=True)
        copying.start()
        try:
            yield writing
        finally:
            os.close(writing)
            copying.join()
