"""Log what schedules do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from supervisor.schedules.events import ScheduleFired, ScheduleMissed, ScheduleSkipped
from supervisor.text.rate_limit import RateLimit, times
from supervisor.text.units import counted


class ScheduleLines:
    """`writers` has the writer of each event. A schedule that skips again and again has one line a minute."""

    def __init__(self, log: Callable[..., None], clock: Callable[[], float]) -> None:
        self._log, self._repeats = log, RateLimit(clock)
        self.writers: Mapping[type[Any], Callable[[Any], None]] = {
            ScheduleFired: self._fired,
            ScheduleSkipped: self._skipped,
            ScheduleMissed: self._missed,
        }

    def _fired(self, event: ScheduleFired) -> None:
        jobs = ", ".join(map(str, event.job_ids))
        self._log(logging.DEBUG, "schedule %s fired for %s: job=%s", event.schedule, event.at, jobs)

    def _skipped(self, event: ScheduleSkipped) -> None:
        if (held := self._repeats.allow((ScheduleSkipped, event.schedule))) is not None:
            self._log(logging.INFO, "schedule %s at %s %s%s", event.schedule, event.at, event.reason, times(held))

    def _missed(self, event: ScheduleMissed) -> None:
        if (held := self._repeats.allow((ScheduleMissed, event.schedule))) is not None:
            number = ("at least " if event.or_more else "") + counted(event.number, "fire time", "were")
            line = "schedule %s: %s missed, the last one at %s; now %s enqueued%s"
            jobs = counted(event.enqueued, "job", "were")
            self._log(logging.WARNING, line, event.schedule, number, event.at, jobs, times(held))
