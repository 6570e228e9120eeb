"""The metrics of schedules, by their names, which the configuration and the plugins limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from supervisor.schedules.events import ScheduleFired, ScheduleMissed, ScheduleSkipped


class ScheduleMetrics:
    def __init__(self) -> None:
        self.counters: Mapping[type[Any], Callable[[Any], None]] = {
            ScheduleFired: self._fired,
            ScheduleSkipped: self._skipped,
            ScheduleMissed: self._missed,
        }
        self._jobs: Counter[str] = Counter()
        self._times_skipped: Counter[str] = Counter()
        self._times_missed: Counter[str] = Counter()

    def snapshot(self) -> dict[str, Any]:
        return {
            "schedule_jobs_total": dict(self._jobs),
            "schedule_skipped_total": dict(self._times_skipped),
            "schedule_missed_total": dict(self._times_missed),
        }

    def _fired(self, event: ScheduleFired) -> None:
        self._jobs[event.schedule] += len(event.job_ids)

    def _skipped(self, event: ScheduleSkipped) -> None:
        self._times_skipped[event.schedule] += 1

    def _missed(self, event: ScheduleMissed) -> None:
        self._times_missed[event.schedule] += event.number
