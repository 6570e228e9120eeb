"""Events of schedules. Times are texts in ISO 8601."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ScheduleFired(NamedTuple):
    """Jobs were enqueued for a schedule; `at` is the fire time of the last one."""

    schedule: str
    at: str
    job_ids: Sequence[int]


class ScheduleSkipped(NamedTuple):
    """No job was enqueued for a fire time, since the last job of the schedule has not ended."""

    schedule: str
    at: str
    reason: str


class ScheduleMissed(NamedTuple):
    """Fire times of a schedule have passed without a decision: `number` of them, or more if `or_more`, the last one `at`. Now
    `enqueued` jobs were enqueued, as its `on_missed` demands."""

    schedule: str
    at: str
    number: int
    or_more: bool
    enqueued: int


ScheduleEvent = ScheduleFired | ScheduleSkipped | ScheduleMissed
