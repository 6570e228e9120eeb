"""What is decided about a schedule, by the clock of the store and the row that the store keeps."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.schedules.fire_times import Cron, Every
from supervisor.schedules.policy import MAX_MISSED, Decision, Schedule, ScheduleState, decide, paused, removed
from tests.unit.schedules.moments import DAY, HOUR, MINUTE, SECOND, at

NOW = at("2026-06-01T12:00")
MINUTELY = Schedule("m", "mail", Cron("* * * * *"))
NIGHTLY = Schedule("n", "report", Cron("0 3 * * *"))
EVERY = Schedule("e", "ping", Every(30 * SECOND))


def state_of(schedule: Schedule, last: int | None = None, **known: Any) -> ScheduleState:
    """The row of a schedule that has been registered long ago."""
    return ScheduleState(schedule.name, schedule.handler, schedule.timing.text, NOW - 365 * DAY, last, **known)


def fires(schedule: Schedule, last: int, now: int, **known: Any) -> Decision:
    return decide(schedule, state_of(schedule, last), now, **known)


# --- the first decision, and one after another


@pytest.mark.parametrize("schedule", [MINUTELY, NIGHTLY, EVERY], ids=lambda it: it.name)
def test_a_new_schedule_counts_from_now_on(schedule: Schedule) -> None:
    decision = decide(schedule, ScheduleState(schedule.name, since=NOW - DAY), NOW)
    assert (decision.fires, decision.missed, decision.since) == ((), (), NOW)
    assert decision.state == ScheduleState(schedule.name, schedule.handler, schedule.timing.text, NOW)
    assert decision.next_at == schedule.timing.after(NOW)


def test_each_fire_time_is_decided_once() -> None:
    first = fires(MINUTELY, NOW - MINUTE, NOW)
    assert (first.fires, first.missed, first.next_at) == ([NOW], [], NOW + MINUTE)
    assert (first.state.last, first.state.outcome) == (NOW, "enqueued")
    again = decide(MINUTELY, first.state, NOW + SECOND, since=first.since)
    assert (again.fires, again.state, again.next_at) == ((), first.state, NOW + MINUTE)


def test_nothing_fires_before_its_time() -> None:
    early = fires(MINUTELY, NOW - MINUTE, NOW - 1)
    assert (early.fires, early.next_at) == ((), NOW)


def test_intervals_do_not_drift_however_late_each_decision_is() -> None:
    state, since, last = state_of(EVERY, NOW), 0, NOW
    for n in range(1, 20):
        decision = decide(EVERY, state, NOW + n * 30 * SECOND + n * SECOND, since=since)
        state, since, last = decision.state, decision.since, decision.fires[-1]
    assert last == NOW + 19 * 30 * SECOND


# --- missed fire times


@pytest.mark.parametrize(
    ("on_missed", "enqueued"), [("skip", 0), ("once", 1), ("all", 3)]
)  # fmt: skip
def test_fire_times_of_a_time_without_supervisors(on_missed: str, enqueued: int) -> None:
    late = fires(NIGHTLY._replace(on_missed=on_missed), NOW - 3 * DAY, NOW - 5 * HOUR)
    times = [at("2026-05-30T03:00"), at("2026-05-31T03:00"), at("2026-06-01T03:00")]
    assert late.missed == times
    assert list(late.fires) == times[len(times) - enqueued :]
    assert late.state.last == times[-1]
    assert late.state.outcome == ("enqueued" if enqueued else "missed")
    assert late.next_at == at("2026-06-02T03:00")


@pytest.mark.parametrize(("on_missed", "enqueued"), [("skip", 1), ("once", 1), ("all", 10)])
def test_the_last_of_them_is_in_time_if_it_is_of_this_minute(on_missed: str, enqueued: int) -> None:
    late = fires(MINUTELY._replace(on_missed=on_missed), NOW - 10 * MINUTE, NOW + 59 * SECOND)
    assert (len(late.missed), len(late.fires), late.fires[-1]) == (9, enqueued, NOW)
    late = fires(MINUTELY._replace(on_missed="skip"), NOW - 10 * MINUTE, NOW - MINUTE + 60 * SECOND)
    assert late.fires == [NOW]


def test_a_fire_time_is_late_after_a_minute() -> None:
    assert fires(NIGHTLY._replace(on_missed="skip"), NOW - 2 * DAY, at("2026-06-01T03:01")).fires[-1:] == [
        at("2026-06-01T03:00")
    ]
    assert fires(NIGHTLY._replace(on_missed="skip"), NOW - 2 * DAY, at("2026-06-01T03:01") + 1).fires == ()


def test_the_jobs_for_missed_fire_times_have_a_limit() -> None:
    late = fires(MINUTELY._replace(on_missed="all"), NOW - DAY, NOW)
    assert (len(late.fires), late.fires[-1], late.more_missed) == (MAX_MISSED, NOW, True)
    assert late.state.last == NOW, "the others never come"
    assert decide(MINUTELY, late.state, NOW + 1).fires == ()


# --- overlap, pause


@pytest.mark.parametrize("schedule", [MINUTELY, MINUTELY._replace(on_missed="all")])
def test_no_job_beside_an_unfinished_one(schedule: Schedule) -> None:
    alone = schedule._replace(overlap="skip")
    state = state_of(alone, NOW - MINUTE, last_job=17)
    skipped = decide(alone, state, NOW, unfinished=True)
    assert (skipped.fires, skipped.skipped) == ((), "skipped: its last job 17 has not ended")
    assert (skipped.state.last, skipped.state.outcome) == (NOW, skipped.skipped)
    assert decide(alone, state, NOW, unfinished=False).fires == [NOW]
    assert decide(schedule, state, NOW, unfinished=True).fires == [NOW]


def test_missed_fire_times_are_not_made_up_for_by_jobs_beside_each_other() -> None:
    alone = MINUTELY._replace(on_missed="all", overlap="skip")
    assert fires(alone, NOW - 5 * MINUTE, NOW).fires == [NOW]


def test_a_paused_schedule_enqueues_nothing_and_misses_nothing() -> None:
    state = paused(state_of(MINUTELY, NOW - MINUTE), NOW, True)
    decision = decide(MINUTELY, state, NOW + 5 * MINUTE)
    assert (decision.fires, decision.missed, decision.skipped) == ((), (), "")
    assert (decision.state.last, decision.state.outcome) == (NOW + 5 * MINUTE, "paused")


def test_a_resumed_schedule_fires_from_then_on() -> None:
    state = paused(state_of(MINUTELY, NOW - MINUTE), NOW, True)
    state = paused(state, NOW + 3 * HOUR + 1, False)
    decision = decide(MINUTELY._replace(on_missed="all"), state, NOW + 3 * HOUR + MINUTE)
    assert decision.fires == [NOW + 3 * HOUR + MINUTE]
    assert paused(state, NOW + DAY, False) == state, "it was not paused"


# --- other configurations


def test_a_changed_expression_makes_no_job_for_the_past() -> None:
    changed = NIGHTLY._replace(timing=Cron("*/5 * * * *"))
    decision = decide(changed, state_of(NIGHTLY, NOW - DAY), NOW)
    assert (decision.fires, decision.missed, decision.next_at) == ((), (), NOW + 5 * MINUTE)
    assert (decision.state.timing, decision.state.since) == (changed.timing.text, NOW)
    restarted = decide(changed, decision.state, NOW + 5 * MINUTE)
    assert restarted.fires == [NOW + 5 * MINUTE], "it is the registered one now"


@pytest.mark.parametrize("change", [{"payload": "[1]"}, {"queue": "q"}, {"jitter": 5.0}, {"handler": "other"}])
def test_any_other_change_goes_on_where_it_was(change: dict[str, Any]) -> None:
    changed = NIGHTLY._replace(**change)
    decision = decide(changed, state_of(NIGHTLY, NOW - DAY), NOW)
    assert decision.fires == [at("2026-06-01T03:00")]
    assert decision.state.handler == changed.handler


def test_a_schedule_that_was_removed_and_comes_again_starts_anew() -> None:
    state = removed(state_of(NIGHTLY, NOW - 7 * DAY), NIGHTLY.timing)
    assert decide(NIGHTLY, state, NOW).fires == ()
    other = removed(state_of(NIGHTLY, NOW - 7 * DAY), Cron("0 4 * * *"))
    assert decide(NIGHTLY, other, NOW).fires, "another supervisor has changed it before"


def test_supervisors_with_different_expressions_do_not_undo_each_other() -> None:
    """In a rolling deployment both fire at their own times, each once, whoever decides first, and the newer one stays registered."""
    old, new = NIGHTLY, NIGHTLY._replace(timing=Cron("0 4 * * *"))
    state = state_of(old, NOW)
    since_old = decide(old, state, NOW).since
    registered = decide(new, state, NOW + HOUR)
    state, since_new = registered.state, registered.since
    jobs = []
    for hour in range(2, 72):
        for schedule, since in ((old, since_old), (new, since_new)):
            decision = decide(schedule, state, NOW + hour * HOUR, since=since)
            jobs += decision.fires
            state = decision.state
            assert state.timing == new.timing.text
    assert jobs == [at(f"2026-06-0{day}T0{hour}:00") for day in (2, 3, 4) for hour in (3, 4)]


# --- the clock


@pytest.mark.parametrize("schedule", [MINUTELY, NIGHTLY])
def test_a_clock_that_is_set_back_by_an_hour_brings_no_fire_time_again(schedule: Schedule) -> None:
    state, since, jobs = state_of(schedule, at("2026-06-01T02:00")), 0, []
    clock = [*range(at("2026-06-01T02:00"), at("2026-06-01T03:10"), MINUTE)]
    clock += range(at("2026-06-01T02:10"), at("2026-06-01T05:00"), MINUTE)
    for now in clock:
        decision = decide(schedule, state, now, since=since)
        state, since = decision.state, decision.since
        jobs += decision.fires
    assert len(jobs) == len(set(jobs))
    assert jobs == schedule.timing.due(at("2026-06-01T02:00"), clock[-1], 1000).times


def test_an_interval_that_is_shorter_starts_anew_when_the_clock_is_set_back() -> None:
    state = state_of(EVERY, NOW)
    decision = decide(EVERY, state, NOW - HOUR, since=0)
    assert (decision.fires, decision.since, decision.next_at) == ((), NOW - HOUR, NOW - HOUR + 30 * SECOND)
    assert decision.state.outcome == "started anew: the clock was set back by 1h"
    after = decide(EVERY, decision.state, NOW - HOUR + 30 * SECOND, since=decision.since)
    assert after.fires == [NOW - HOUR + 30 * SECOND]
    assert decide(EVERY, state, NOW - 30 * SECOND, since=0).next_at == NOW + 30 * SECOND, "a small step is waited for"


def test_a_clock_that_was_far_ahead_does_not_stop_a_schedule_until_then() -> None:
    wrong = fires(NIGHTLY, NOW - DAY, at("2099-01-01T00:00"))
    assert len(wrong.fires) == 1
    right = decide(NIGHTLY, wrong.state, NOW, since=wrong.since)
    assert (right.fires, right.since, right.next_at) == ((), NOW, at("2026-06-02T03:00"))
    assert right.state.last is None


@pytest.mark.parametrize(("on_missed", "jobs"), [("skip", 1), ("once", 1), ("all", 60)])
def test_a_clock_that_is_set_forward_by_an_hour_misses_fire_times(on_missed: str, jobs: int) -> None:
    forward = fires(MINUTELY._replace(on_missed=on_missed), NOW - HOUR, NOW)
    assert (len(forward.fires), len(forward.missed)) == (jobs, 59)


@pytest.mark.parametrize("last", [-(2**63), -1, 0, 2**63 - 1])
@pytest.mark.parametrize("schedule", [MINUTELY, NIGHTLY, EVERY, MINUTELY._replace(timing=Cron("0 0 29 2 *"))])
def test_any_time_that_another_program_has_written_is_overcome(schedule: Schedule, last: int) -> None:
    first = decide(schedule, state_of(schedule, last)._replace(since=last), NOW)
    assert first.next_at is not None and NOW < first.next_at <= schedule.timing.after(NOW)
    assert decide(schedule, first.state, first.next_at, since=first.since).fires == [first.next_at]


def test_a_schedule_without_any_further_time_waits_for_ever() -> None:
    last = Schedule("l", "mail", Cron("0 0 1 1 *"))
    assert decide(last, ScheduleState("l", since=0), at("9999-06-01T00:00")).next_at is None
