"""The decisions about one schedule: the fire times for which jobs are enqueued, and those for which none is, with the reason.

Everything is a function of the clock of the store, of the state that the store keeps, and of random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from supervisor.schedules.fire_times import MICROSECONDS, Cron, Due, Timing
from supervisor.text.units import format_duration

MAX_MISSED = 100
"""The most jobs that `on_missed: all` makes up for: those of the last fire times."""
ON_TIME = 60 * MICROSECONDS
"""A fire time is missed if it was so long ago, or if the next one is due too."""
SET_BACK = 3 * 3600 * MICROSECONDS
"""If the clock is behind the last fire time by more, it was wrong before, and the schedule starts anew."""

MAX_AGE = 10 * 366 * 86_400 * MICROSECONDS
"""Fire times of a cron expression are looked for among those of so much time: another program may have written any time."""

NAME, TIME = "schedule.name", "schedule.time"
"""Headers of the jobs of schedules: the name, and the fire time in ISO 8601."""

ENQUEUED = "enqueued"
PAUSED = "paused"
MISSED = "missed"


class Schedule(NamedTuple):
    """A schedule as the configuration has it. `payload` is JSON text, and `jitter` and `expires` are in seconds."""

    name: str
    handler: str
    timing: Timing
    payload: str = "null"
    queue: str = "default"
    priority: int = 0
    jitter: float = 0.0
    on_missed: str = "once"
    overlap: str = "allow"
    key: str | None = None
    on_failure: str = "pass"
    group: str | None = None
    tags: tuple[str, ...] = ()
    expires: float | None = None
    headers: Mapping[str, Any] | None = None


class ScheduleState(NamedTuple):
    """The row that a store keeps of a schedule. Times are microseconds since the epoch, by the clock of the store.

    `timing` is that of the supervisor that came last with a new one, as text, and its fire times count from `since` on. `last` is
    the last fire time that has been decided, by any supervisor, and `outcome` is the decision. `last_job` is the id of the last
    job, also of one that a person has enqueued.
    """

    name: str
    handler: str = ""
    timing: str = ""
    since: int = 0
    last: int | None = None
    outcome: str = ""
    paused: bool = False
    last_job: int | None = None


class Decision(NamedTuple):
    """`state` is the row to write. Jobs are enqueued for the times `fires`. `missed` are fire times that were not decided in time,
    at least so many if `more_missed`. `skipped` is the reason why no job is enqueued although the schedule fires. `since` is to be
    given to the next decision of the same supervisor about the same timing."""

    state: ScheduleState
    since: int
    next_at: int | None
    fires: Sequence[int] = ()
    missed: Sequence[int] = ()
    more_missed: bool = False
    skipped: str = ""


def decide(
    schedule: Schedule, state: ScheduleState, now: int, *, since: int | None = None, unfinished: bool = False
) -> Decision:
    """Decide what is due. `since` is None for a supervisor that has not decided about this timing yet; then it registers it.
    `unfinished` is whether the last job of the schedule has not ended.

    Supervisors with another timing for the same name do not undo each other's registration: each goes on with its own fire times
    behind the last one of all.
    """
    state, since = _registered(schedule, state, now, since)
    behind = max(since, since if state.last is None else state.last)
    if behind - now > (SET_BACK if isinstance(schedule.timing, Cron) else schedule.timing.interval):
        wrong_by = format_duration((behind - now) / MICROSECONDS)
        state = state._replace(since=now, last=None, outcome=f"started anew: the clock was set back by {wrong_by}")
        behind = since = now
    if isinstance(schedule.timing, Cron):
        behind = max(behind, now - MAX_AGE)
    due = schedule.timing.due(behind, now, MAX_MISSED)
    if not due.times:
        return Decision(state, since, schedule.timing.after(behind))
    next_at = schedule.timing.after(due.times[-1])
    decision = _decided(schedule, state, due, now, unfinished)
    outcome = decision.skipped or (ENQUEUED if decision.fires else PAUSED if state.paused else MISSED)
    state = state._replace(last=due.times[-1], outcome=outcome)
    return decision._replace(state=state, since=since, next_at=next_at)


def _registered(schedule: Schedule, state: ScheduleState, now: int, since: int | None) -> tuple[ScheduleState, int]:
    """Return the state, and since when the fire times of this supervisor count."""
    text = schedule.timing.text
    if state.timing == text or (since is not None and not state.timing):  # a row without a timing may be a new one
        since = max(state.since, since or 0)
    elif since is None:
        state, since = state._replace(timing=text, since=now), now
    return state if state.handler == schedule.handler else state._replace(handler=schedule.handler), since


def _decided(schedule: Schedule, state: ScheduleState, due: Due, now: int, unfinished: bool) -> Decision:
    """Return the decision about fire times that are due; state, since and next_at are still to be set."""
    *earlier, latest = due.times
    is_late = now - latest > ON_TIME
    missed = due.times if is_late else earlier
    nothing = Decision(state, 0, None)
    if state.paused:
        return nothing
    decision = nothing._replace(missed=missed, more_missed=due.more)
    fires = _made_up(schedule, due.times, is_late)
    if fires and schedule.overlap == "skip" and unfinished:
        return decision._replace(skipped=f"skipped: its last job {state.last_job} has not ended")
    return decision._replace(fires=fires)


def _made_up(schedule: Schedule, times: Sequence[int], is_late: bool) -> Sequence[int]:
    if schedule.on_missed == "all" and schedule.overlap == "allow":
        return times
    return () if schedule.on_missed == "skip" and is_late else times[-1:]


def paused(state: ScheduleState, now: int, is_paused: bool) -> ScheduleState:
    """Return the state of a schedule that is paused or resumed. Fire times during the pause are not missed."""
    since = max(state.since, now) if state.paused and not is_paused else state.since
    return state._replace(paused=is_paused, since=since)


def removed(state: ScheduleState, timing: Timing) -> ScheduleState:
    """Return the state of a schedule that was taken out of a configuration: if it comes again, it starts anew."""
    return state._replace(timing="") if state.timing == timing.text else state
