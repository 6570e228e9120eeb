"""The timer of schedules, in virtual time: when it wakes, what it asks the store for, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from supervisor.engine.schedules import LOOK_AGAIN, NOT_KEPT
from supervisor.engine.store_writer import Purpose
from supervisor.errors import StoreError
from supervisor.events import ConfigWarning
from supervisor.handlers import HandlerInfo
from supervisor.plugins.reports import SourceReport
from supervisor.schedules.events import ScheduleFired, ScheduleMissed, ScheduleSkipped
from supervisor.schedules.policy import paused
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.schedules import ScheduleChange
from tests.unit.virtual import Virtual
from tests.unit.wrapped_store import WrappedStore

MINUTE, HOUR = 60.0, 3600.0
MINUTELY = {"handler": "work", "cron": "* * * * *"}
EVERY = {"handler": "work", "every": 10.0}


class Scene(Virtual):
    """An engine whose worker takes no job, so that those that schedules enqueue can be counted. The wall clock begins 40 seconds
    before a minute. `calls` are the times at which the store was asked."""

    def __init__(self, *, start: bool = True, **given: Any) -> None:
        super().__init__(**given)
        self.wall.step(1_700_000_000.0 - self.wall())
        self.calls: list[float] = []
        submit = self.writer.submit

        def noted(call: Any, purpose: Purpose = Purpose.READ, did_work: Any = None) -> Any:
            if purpose is Purpose.SCHEDULE:
                self.calls.append(self.loop.time())
            return submit(call, purpose, did_work)

        self.writer.submit = noted  # type: ignore[method-assign]
        if start:
            self.engine.schedules.start()
            self.loop.advance(0.0)

    def times(self) -> list[str]:
        """The fire times of the jobs, oldest first, as minutes and seconds."""
        jobs = [job for job in self.store.list_jobs(limit=10_000) if "schedule.time" in job["headers"]]
        return [job["headers"]["schedule.time"][14:19] for job in jobs][::-1]

    def reported(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def use(self, **schedules: Any) -> None:
        """Reload with these schedules."""
        settings = type(self.settings)(schedules=schedules)
        self.engine.config.replace(settings, [SourceReport("work.py", (HandlerInfo("work", {}, "work.py", 1),))])
        self.engine.schedules.replace()
        self.loop.advance(0.0)


def scene(**schedules: Any) -> Scene:
    return Scene(schedules=schedules)


def test_each_fire_time_has_one_job() -> None:
    here = scene(m=MINUTELY)
    here.loop.advance(39.0)
    assert here.times() == []
    here.loop.advance(1.0 + 3 * MINUTE)
    assert here.times() == ["14:00", "15:00", "16:00", "17:00"]
    assert [event.at[14:19] for event in here.reported(ScheduleFired)] == here.times()
    assert here.reported(ScheduleMissed) == here.reported(ScheduleSkipped) == []


def test_a_job_is_enqueued_at_its_time_and_claimed_at_once() -> None:
    here = scene(e=EVERY)
    here.serve()
    here.loop.advance(9.999)
    assert here.times() == []
    here.loop.advance(0.002)
    assert here.times() == ["13:30"]
    (event,) = here.reported(ScheduleFired)
    assert here.state(event.job_ids[0]) == "in_flight"


def test_nothing_costs_anything_without_a_schedule() -> None:
    here = scene()
    assert here.loop._due == []
    here.loop.advance(10 * MINUTE)
    assert here.calls == []


def test_the_store_is_asked_at_fire_times_and_once_a_minute() -> None:
    here = scene(hourly={"handler": "work", "cron": "0 * * * *"}, e={"handler": "work", "every": HOUR})
    here.loop.advance(10 * LOOK_AGAIN)
    assert len(here.calls) == 11
    assert all(later - earlier >= LOOK_AGAIN for earlier, later in zip(here.calls, here.calls[1:], strict=False))


def test_only_schedules_that_are_due_are_decided() -> None:
    here = scene(m=MINUTELY, e=EVERY)
    asked: list[list[str]] = []
    change = here.store.change_schedules
    here.store.change_schedules = lambda names, *rest, **more: (  # type: ignore[method-assign]
        asked.append([*names]) or change(names, *rest, **more)
    )
    here.loop.advance(39.0)
    assert asked == [["e"]] * 3


@pytest.mark.parametrize(("on_missed", "jobs"), [("skip", 1), ("once", 1), ("all", 61)])
def test_a_clock_that_is_set_forward_is_seen_within_a_second(on_missed: str, jobs: int) -> None:
    here = scene(m={**MINUTELY, "on_missed": on_missed})
    here.loop.advance(5.0)
    here.wall.step(HOUR + 40.0)
    here.loop.advance(1.0)
    assert len(here.times()) == jobs
    (missed,) = here.reported(ScheduleMissed)
    assert (missed.number, missed.enqueued) == (60, jobs)
    here.loop.advance(MINUTE)
    assert len(here.times()) == jobs + 1


def test_a_clock_that_is_set_back_by_an_hour_brings_no_fire_time_twice() -> None:
    here = scene(m=MINUTELY)
    here.loop.advance(10 * MINUTE)
    before = here.times()
    assert len(before) == 10
    here.wall.step(-HOUR)
    here.loop.advance(HOUR - MINUTE)
    assert here.times() == before
    here.loop.advance(5 * MINUTE)
    assert here.times()[10:] == ["24:00", "25:00", "26:00", "27:00"], "none is lost either"
    assert here.reported(ScheduleMissed) == []


def test_an_interval_goes_on_when_the_clock_is_set_back() -> None:
    here = scene(e=EVERY)
    here.loop.advance(MINUTE)
    here.wall.step(-HOUR)
    here.loop.advance(MINUTE)
    assert len(here.times()) in (11, 12)


def test_a_clock_of_the_store_that_differs_from_that_of_the_machine_decides() -> None:
    offset = [1000.0]
    here: Any = None
    store = MemoryStore(clock=lambda: here.wall() + offset[0] if here else 0.0)
    here = Scene(store=store, start=False, schedules={"m": MINUTELY})
    here.engine.schedules.start()
    here.loop.advance(MINUTE)
    assert here.times() == ["31:00"]
    offset[0] += 30.0
    here.loop.advance(2 * LOOK_AGAIN)
    assert here.times() == ["31:00", "32:00", "33:00"]
    assert here.reported(ScheduleMissed) == []


def test_a_supervisor_that_was_down_makes_up_for_missed_fire_times() -> None:
    first = scene(m={**MINUTELY, "on_missed": "all"})
    first.loop.advance(MINUTE)
    first.engine.schedules.stop()
    first.loop.advance(10 * MINUTE)
    assert first.times() == ["14:00"], "it has stopped"
    second = Scene(store=first.store, start=False, schedules={"m": {**MINUTELY, "on_missed": "all"}})
    second.wall.step(first.wall() - second.wall())
    second.store.state.clock = second.wall  # type: ignore[attr-defined]
    second.engine.schedules.start()
    second.loop.advance(0.0)
    assert len(second.times()) == 11
    assert second.reported(ScheduleMissed)[0].number == 9


def test_an_unavailable_store_is_waited_for() -> None:
    here = scene(m=MINUTELY)
    here.writer.unavailable = True
    here.loop.advance(5 * MINUTE)
    assert (here.times(), len(here.calls)) == ([], 2), "calls do not pile up"
    here.writer.unavailable = False
    here.writer.step()
    here.loop.advance(1.0)
    assert here.times() == ["18:00"]
    here.loop.advance(MINUTE)
    assert here.times() == ["18:00", "19:00"]


class Refusing(WrappedStore):
    """Refuses to change schedules while `refuses`, and leaves out the rows of `locked`."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.refuses, self.locked = False, frozenset[str]()

    def change_schedules(self, names: Any, change: Any, *, wait: bool = False) -> list[list[int]]:
        if self.refuses:
            raise StoreError("no right to update schedules")
        return self.inner.change_schedules([name for name in names if name not in self.locked], change, wait=wait)


def refusing(**schedules: Any) -> tuple[Scene, Refusing]:
    here: Any = None
    store = Refusing(lambda: here.wall() if here else 0.0)
    here = Scene(store=store, start=False, schedules=schedules)  # type: ignore[arg-type]
    here.engine.schedules.start()
    here.loop.advance(0.0)
    return here, store


def test_a_call_that_fails_is_repeated_ever_more_seldom() -> None:
    here, store = refusing(e=EVERY)
    store.refuses = True
    here.loop.advance(10 * MINUTE)
    assert 50 < len(here.calls) < 70
    store.refuses = False
    here.loop.advance(30.0)
    assert len(here.times()) > 0
    calls = len(here.calls)
    here.loop.advance(10.0)
    assert len(here.calls) == calls + 1, "it is on time again"


def test_a_removal_that_fails_is_repeated_ever_more_seldom_too() -> None:
    here, store = refusing(m=MINUTELY)
    here.loop.advance(MINUTE)
    store.refuses = True
    before = len(here.calls)
    here.use()
    here.loop.advance(10 * MINUTE)
    assert 50 < len(here.calls) - before < 70
    store.refuses = False
    here.loop.advance(10.0)
    assert [row.state.timing for row in store.schedules()] == [""]
    assert len(here.times()) == 1


def test_a_row_that_is_locked_is_tried_again_and_holds_up_no_other() -> None:
    here, store = refusing(m=MINUTELY, other=MINUTELY)
    store.locked = frozenset(["m"])
    here.loop.advance(45.0)
    assert here.times() == ["14:00"]
    store.locked = frozenset()
    here.loop.advance(1.0)
    assert here.times() == ["14:00", "14:00"]
    assert here.reported(ScheduleMissed) == []


def test_a_reload_adds_changes_and_removes_schedules() -> None:
    here = scene(m=MINUTELY, gone=MINUTELY)
    here.loop.advance(MINUTE)
    assert here.times() == ["14:00", "14:00"]
    here.use(m={**MINUTELY, "cron": "*/2 * * * *"}, new=EVERY)
    here.loop.advance(MINUTE + 1.0)
    by_name = [job["headers"]["schedule.name"] for job in here.store.list_jobs()][::-1][2:]
    assert (by_name.count("m"), by_name.count("new"), by_name.count("gone")) == (0, 6, 0)
    here.loop.advance(MINUTE)
    assert [job["headers"]["schedule.name"] for job in here.store.list_jobs()].count("m") == 2


def test_a_reload_without_a_change_repeats_and_loses_nothing() -> None:
    here = scene(m=MINUTELY)
    for _ in range(4):
        here.loop.advance(30.0)
        here.use(m={**MINUTELY, "payload": [1]})
    assert here.times() == ["14:00", "15:00"]
    assert here.reported(ScheduleMissed) == []


def test_a_schedule_that_comes_again_makes_no_job_for_the_time_without_it() -> None:
    here = scene(m={**MINUTELY, "on_missed": "all"})
    here.loop.advance(MINUTE)
    here.use()
    assert here.engine.schedules.names() == []
    here.loop.advance(HOUR)
    assert here.times() == ["14:00"]
    here.use(m={**MINUTELY, "on_missed": "all"})
    here.loop.advance(MINUTE)
    assert len(here.times()) == 2
    assert here.reported(ScheduleMissed) == []


def test_a_schedule_that_is_taken_out_while_the_store_is_asked_stays_out() -> None:
    here = scene(m=MINUTELY, other=MINUTELY)
    here.writer.eager = False
    here.loop.advance(40.0)
    here.use(other={**MINUTELY, "cron": "*/5 * * * *"})
    here.writer.step()
    here.writer.eager = True
    here.loop.advance(0.0)
    assert len(here.times()) == 2, "of the call that was under way"
    here.loop.advance(2 * MINUTE)
    assert len(here.times()) == 3, "15:00 is one of every five minutes"


def test_an_answer_about_an_old_expression_does_not_count_for_the_new_one() -> None:
    here = scene(m={"handler": "work", "cron": "0 0 1 1 *"})
    here.loop.advance(5 * MINUTE)
    here.writer.eager = False
    here.loop.advance(LOOK_AGAIN)
    assert here.writer.waiting
    here.use(m={**MINUTELY, "on_missed": "all"})
    here.writer.step()
    here.writer.eager = True
    here.loop.advance(1.0)
    assert here.times() == []
    here.loop.advance(MINUTE)
    assert len(here.times()) == 1


def test_a_fire_time_soon_after_another_one_is_in_time() -> None:
    here = scene(one=EVERY)
    here.loop.advance(0.25)
    here.use(one=EVERY, two=EVERY)
    here.loop.advance(10.0)
    assert len(here.times()) == 2


def beside(here: Scene, **schedules: Any) -> Scene:
    """Another supervisor on the same store, with other settings and the same clock."""
    store = MemoryStore(state=here.store.state)  # type: ignore[attr-defined]
    other = Scene(store=store, start=False, schedules=schedules)
    other.wall = other.engine.schedules._wall = here.wall
    other.engine.schedules.start()
    return other


def test_in_a_rolling_deployment_each_expression_has_its_own_fire_times() -> None:
    here = scene(m={**MINUTELY, "cron": "*/3 * * * *", "on_missed": "all"})
    here.loop.advance(5 * MINUTE)
    new = beside(here, m={**MINUTELY, "cron": "*/5 * * * *", "on_missed": "all"})
    for _ in range(15 * 60):
        here.loop.advance(1.0)
        new.loop.advance(1.0)
    both = here.times()
    assert both == ["15:00", "18:00", "20:00", "21:00", "24:00", "25:00", "27:00", "30:00", "33:00"], "30:00 once"
    here.engine.schedules.stop()
    for _ in range(15 * 60):
        here.loop.advance(1.0)
        new.loop.advance(1.0)
    assert here.times() == [*both, "35:00", "40:00", "45:00"]
    assert here.reported(ScheduleMissed) == new.reported(ScheduleMissed) == []


def test_a_pause_and_a_resumption_by_others_are_seen() -> None:
    here = scene(m=MINUTELY)

    def set_paused(is_paused: bool) -> None:
        here.store.change_schedules(
            ["m"], lambda now, rows: [ScheduleChange(paused(rows["m"].state, now, is_paused))], wait=True
        )

    set_paused(True)
    here.loop.advance(3 * MINUTE)
    assert here.times() == []
    set_paused(False)
    here.loop.advance(MINUTE)
    assert here.times() == ["17:00"]
    assert here.reported(ScheduleMissed) == here.reported(ScheduleSkipped) == []


def test_a_schedule_whose_last_job_has_not_ended_skips_and_reports_that() -> None:
    here = scene(m={**MINUTELY, "overlap": "skip"})
    here.loop.advance(3 * MINUTE)
    assert here.times() == ["14:00"]
    (id,) = [job["id"] for job in here.store.list_jobs()]
    assert [event.reason for event in here.reported(ScheduleSkipped)] == [
        f"skipped: its last job {id} has not ended"
    ] * 2
    here.store.cancel([id])
    here.loop.advance(MINUTE)
    assert here.times() == ["14:00", "17:00"]


def test_jitter_is_below_its_limit_and_in_the_job_alone() -> None:
    here = scene(m={**MINUTELY, "jitter": 30.0})  # the random number of this engine is 1.0
    here.loop.advance(MINUTE)
    (job,) = here.store.list_jobs()
    assert job["due_at"][14:19] == "14:30"
    assert here.times() == ["14:00"]


def test_the_schedule_of_a_decorator_fires_unless_the_config_has_one_of_its_name() -> None:
    here = Scene(start=False, schedules={"other": {"handler": "other", "every": 20.0}})
    infos = [
        HandlerInfo("work", {"schedule": {"every": 10.0}, "queue": "q", "priority": 4}, "work.py", 1),
        HandlerInfo("other", {"schedule": {"every": 1.0}}, "work.py", 2),
    ]
    here.engine.config.replace(here.settings, [SourceReport("work.py", tuple(infos))])
    here.engine.schedules.start()
    here.loop.advance(20.0)
    jobs = [(job["headers"]["schedule.name"], job["queue"], job["priority"]) for job in here.store.list_jobs()][::-1]
    assert sorted(jobs) == [("other", "default", 0), ("work", "q", 4), ("work", "q", 4)]


class Limited(WrappedStore):
    limits: ClassVar[Mapping[str, str]] = {"change_schedules": "use another store"}


def test_a_store_that_keeps_no_schedules_is_reported() -> None:
    here = Scene(store=Limited(), schedules={"m": MINUTELY})  # type: ignore[arg-type]
    here.loop.advance(MINUTE)
    assert here.reported(ConfigWarning) == [ConfigWarning(NOT_KEPT)]
    assert (here.calls, here.engine.schedules.names()) == ([], [])
    assert Scene(store=Limited()).reported(ConfigWarning) == []  # type: ignore[arg-type]
