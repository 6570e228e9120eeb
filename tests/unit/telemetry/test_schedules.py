"""The lines of the log, and the metrics, about schedules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.schedules.events import ScheduleEvent, ScheduleFired, ScheduleMissed, ScheduleSkipped
from supervisor.telemetry.metrics import Metrics
from tests.unit.telemetry.conftest import Clock

Log = Callable[..., list[str]]
AT = "2026-03-29T01:00:00.000000Z"
SKIPPED = ScheduleSkipped("nightly", AT, "skipped: its last job 7 has not ended")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (ScheduleFired("nightly", AT, (8, 9)), f"DEBUG schedule nightly fired for {AT}: job=8, 9"),
        (SKIPPED, f"INFO schedule nightly at {AT} skipped: its last job 7 has not ended"),
        (
            ScheduleMissed("nightly", AT, 1, False, 1),
            f"WARNING schedule nightly: 1 fire time was missed, the last one at {AT}; now 1 job was enqueued",
        ),
        (
            ScheduleMissed("nightly", AT, 100, True, 0),
            f"WARNING schedule nightly: at least 100 fire times were missed, the last one at {AT}; now 0 jobs were enqueued",
        ),
    ],
)
def test_each_event_has_a_line(log: Log, event: ScheduleEvent, line: str) -> None:
    assert log(event) == [line]


def test_a_schedule_that_skips_again_and_again_has_one_line_a_minute(log: Log, clock: Clock) -> None:
    assert len(log(*[SKIPPED] * 30, SKIPPED._replace(schedule="other"))) == 2
    clock.now += 60
    assert log(SKIPPED) == [
        f"INFO schedule nightly at {AT} skipped: its last job 7 has not ended (29 more times since the last such line)"
    ]


def test_jobs_and_fire_times_are_counted_by_schedule() -> None:
    metrics = Metrics()
    for event in (ScheduleFired("a", AT, (8, 9)), ScheduleFired("b", AT, (1,)), SKIPPED, SKIPPED):
        metrics(event)
    metrics(ScheduleMissed("a", AT, 3, False, 2))
    counted = metrics.snapshot()
    assert counted["supervisor_schedule_jobs_total"] == {"a": 2, "b": 1}
    assert counted["supervisor_schedule_skipped_total"] == {"nightly": 2}
    assert counted["supervisor_schedule_missed_total"] == {"a": 3}
