"""Log the kinds of calls that the store fails to do, and their recoveries that last."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.events import StoreCallFailed, StoreCallSucceeded
from supervisor.text.rate_limit import RateLimit, times

LASTS = 3.0
"""Seconds without a failure after which a recovery is logged: on a full disk, calls fail and succeed in turns."""


@dataclass(slots=True)
class _Failing:
    since: float
    recovered: float | None = None


class StoreCalls:
    """`recovered` are the purposes of calls that were done since they failed; `log_lasting` logs those that have lasted."""

    def __init__(self, log: Callable[..., None], clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._repeats = RateLimit(clock)
        self._failing: dict[str, _Failing] = {}
        self.recovered: set[str] = set()

    def failed(self, event: StoreCallFailed) -> None:
        self.log_lasting()
        failing = self._failing.setdefault(event.purpose, _Failing(self._clock()))
        self.recovered.discard(event.purpose)
        if (held := self._repeats.allow((event.purpose, event.error, failing.since))) is not None:
            self._log(logging.ERROR, "%s, all else goes on, and it is tried again%s", event.text, times(held))

    def succeeded(self, event: StoreCallSucceeded) -> None:
        now = self._clock()
        failing = self._failing.setdefault(event.purpose, _Failing(now - event.failed_for))
        failing.recovered = now
        self.recovered.add(event.purpose)

    def log_lasting(self, *, all: bool = False) -> None:
        now = self._clock()
        for purpose in sorted(self.recovered):
            failing = self._failing[purpose]
            recovered = failing.recovered or now
            if all or now - recovered >= LASTS:
                self.recovered.discard(purpose)
                del self._failing[purpose]
                line = "the store is able to %s again, after %.2fs"
                self._log(logging.INFO, line, purpose, recovered - failing.since)
