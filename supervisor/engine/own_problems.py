"""The problems of a supervisor at this moment. Those of the store cannot be read in its row there: the store may be the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from supervisor.engine.fetcher import Fetcher
from supervisor.engine.presence import Announcer
from supervisor.engine.self_report import SelfReport
from supervisor.engine.store_writer import Writer
from supervisor.stores.problems import Problem

STALLED_SECONDS = 2.0
"""The time for an answer of the store, after which it is a problem."""
WHAT_TO_DO = "look at the store: who holds a lock, is its disk full, does its server run; all goes on when it answers"


def unavailable_store(error: str) -> Problem:
    return Problem("store", f"the store is unavailable: {error}", WHAT_TO_DO)


@dataclass(eq=False)
class OwnProblems:
    _self_report: SelfReport
    _writer: Writer
    _fetcher: Fetcher
    _announcer: Announcer
    _now: Callable[[], float]

    def now(self) -> list[Problem]:
        """Return what keeps jobs from running here. The store is written to soon, so that the next call knows more."""
        self._announcer.watched()
        return [*self._self_report.masked(self._of_store()), *self._self_report.problems()]

    def _of_store(self) -> Iterator[Problem]:
        asked, stalled = self._seconds(self._writer.asked_at), self._seconds(self._fetcher.stalled_since)
        if self._writer.unavailable:
            yield unavailable_store(self._writer.unavailable_because)
        elif asked > STALLED_SECONDS:
            yield Problem("store", f"the store has not answered for {asked:.0f}s", WHAT_TO_DO)
        if stalled > STALLED_SECONDS:
            yield Problem("claims", f"no jobs are claimed: the store owes an answer for {stalled:.0f}s", WHAT_TO_DO)

    def _seconds(self, since: float | None) -> float:
        return 0.0 if since is None else self._now() - since
