"""The reports of running jobs until they are in the store: their progress, and the last lines that they wrote and logged."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from supervisor.jobs import OUTCOME_LEASE, Lease, Outcome, Progress
from supervisor.stores.job_reports import JobReport, log_text, progress_text
from supervisor.text.printable import printable
from supervisor.workers.interface import OutputLines, WorkerProgress, Written

INTERVAL = 1.0
"""Seconds after which the leases of jobs that have reported something are extended, with their reports."""
MAX_LINES = 100
MAX_CHARACTERS = 16_384  # of all lines of a job
MAX_LINE = 2_000  # characters
MAX_ENDED = 200
MAX_WRITTEN = 2_000_000  # characters, about, of all that is written at once
LeaseKey = tuple[int, int]
"""(job id, fencing token)"""


@dataclass(slots=True, eq=False)
class _Reported:
    lease: Lease
    number: int = 0
    progress: Progress | None = None
    lines: deque[str] = field(default_factory=deque)
    characters: int = 0
    skipped: int = 0  # lines that were dropped for later ones
    new_progress: bool = False
    new_lines: bool = False

    def add(self, text: str) -> None:
        line = printable(text)
        line = line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"
        self.lines.append(line)
        self.characters += len(line)
        while len(self.lines) > MAX_LINES or self.characters > MAX_CHARACTERS:
            self.characters -= len(self.lines.popleft())
            self.skipped += 1

    def report(self) -> JobReport:
        """Return what is not in the store yet."""
        id, token, attempt = self.lease.id, self.lease.token, self.lease.attempt
        progress = None if self.progress is None or not self.new_progress else progress_text(attempt, self.progress)
        return JobReport(id, token, progress, log_text(attempt, self.skipped, self.lines) if self.new_lines else None)


class JobReports:
    """The reports of jobs whose leases are held, and of some that have ended: their output may be read later.

    `on_change` is called INTERVAL after the first of the changes that are not written yet. Those of a job that ends before are
    written with its outcome.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.held: dict[LeaseKey, _Reported] = {}
        self.on_change: Callable[[], object] = lambda: None
        self._changed: dict[LeaseKey, _Reported] = {}
        self._ended: dict[LeaseKey, _Reported] = {}
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def wrote(self, lease: Lease, written: Written, *, is_held: bool = True) -> None:
        """Keep what the job has reported or written."""
        key = lease[:2]
        kept = self.held.get(key) or self._ended.get(key)
        if kept is None:
            kept = _Reported(lease)
            if is_held:
                self.held[key] = kept
            else:
                self._keep_ended(key, kept)
        if isinstance(written, WorkerProgress):
            if written.attempt != lease.attempt or written.number <= kept.number:
                return
            kept.number, kept.new_progress = written.number, True
            kept.progress = Progress(written.done, written.total, written.message)
        else:
            for line in written.lines if isinstance(written, OutputLines) else written.text.split("\n"):
                kept.add(line)
            kept.new_lines = True
        self._changed[key] = kept
        self._schedule()

    def changes(self) -> list[JobReport]:
        """Return what is not in the store yet, to be written now; of very much the first part."""
        found, size = [], 0
        for key, kept in [*self._changed.items()]:
            if size < MAX_WRITTEN:
                size += kept.characters
                found.append(self._take(key))
        return found

    def leases(self) -> list[Lease]:
        """Return the leases of the jobs that `changes` would return."""
        return [kept.lease for key, kept in self._changed.items() if key in self.held]

    def of(self, outcomes: Sequence[Outcome]) -> list[JobReport]:
        """Return what is not in the store yet of these jobs, which have ended, to be written now."""
        keys = [outcome[OUTCOME_LEASE][:2] for outcome in outcomes]
        return [self._take(key) for key in keys if key in self._changed]

    def not_written(self, keys: Iterable[LeaseKey]) -> None:
        """Write the reports of these jobs again later, as far as they are kept: the store has not taken all of them."""
        for key in keys:
            kept = self.held.get(key) or self._ended.get(key)
            if kept is not None:
                kept.new_progress, kept.new_lines = kept.progress is not None, bool(kept.lines)
                self._changed[key] = kept
                self._schedule()

    def ended(self, leases: Iterable[Lease]) -> None:
        """Hold the jobs no longer: their outcomes are in the store, or the leases are lost."""
        for lease in leases:
            key = lease[:2]
            if (kept := self.held.pop(key, None)) is not None:
                self._keep_ended(key, kept)

    def _take(self, key: LeaseKey) -> JobReport:
        kept = self._changed.pop(key)
        report = kept.report()
        kept.new_progress = kept.new_lines = False
        return report

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _keep_ended(self, key: LeaseKey, kept: _Reported) -> None:
        self._ended[key] = kept
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(INTERVAL, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._changed:
            self.on_change()
            if self._changed:  # an extend was under way
                self._schedule()
