"""The state of schedules, which supervisors share: one job for each fire time, whoever decides, and whatever ends in between."""

from __future__ import annotations

import json
import threading
from functools import partial

import pytest

from supervisor.errors import StoreError
from supervisor.schedules.fire_times import Cron, Every
from supervisor.schedules.policy import Schedule, ScheduleState, decide, paused
from supervisor.stores.records import EnqueueRow
from supervisor.stores.schedules import ScheduleChange, ScheduleRow, rows_of
from tests.stores.at_once import all_at_once, beside
from tests.stores.factories import IN_SQL, ON_POSTGRESQL, put, success, take_one

MINUTE = 60.0
MINUTELY = Schedule("minutely", "mail", Cron("* * * * *"), '{"to": "me"}', queue="post", priority=3)


def fire(store, *schedules, since=None, random=lambda: 0.5, wait=False):
    """Decide about these schedules as a supervisor does, and return the ids of the jobs of each."""
    by_name = {schedule.name: schedule for schedule in schedules or (MINUTELY,)}

    def change(now, rows):
        changes = []
        for name, row in rows.items():
            known = (since or {}).get(name)
            decision = decide(by_name[name], row.state, now, since=known, unfinished=row.unfinished)
            if since is not None:
                since[name] = decision.since
            changes.append(ScheduleChange(decision.state, rows_of(by_name[name], decision.fires, random)))
        return changes

    return store.change_schedules(list(by_name), change, wait=wait)


def set_paused(store, is_paused, name="minutely"):
    def change(now, rows):
        return [ScheduleChange(paused(row.state, now, is_paused)) for row in rows.values()]

    store.change_schedules([name], change, wait=True)


def row_of(store, name="minutely") -> ScheduleRow:
    return next(row for row in store.schedules() if row.state.name == name)


@pytest.fixture
def at_zero(factory):
    """The clock at the beginning of a minute."""
    factory.clock.step(40)
    assert factory.clock.now % 60 == 0
    return factory.clock


def test_a_store_has_no_schedule_at_first(store):
    assert store.schedules() == []
    assert store.change_schedules([], lambda now, rows: []) == []


def test_a_schedule_gets_a_row_that_counts_from_then_on(at_zero, store):
    assert fire(store) == [[]]
    now = at_zero.microseconds
    assert row_of(store) == ScheduleRow(ScheduleState("minutely", "mail", "cron * * * * * UTC", now))


def test_a_job_has_all_that_its_schedule_gives_it(at_zero, store):
    fire(store)
    at_zero.step(MINUTE)
    ((id,),) = fire(store)
    job = store.get(id)
    assert (job["handler"], job["payload"], job["queue"], job["priority"]) == ("mail", {"to": "me"}, "post", 3)
    assert job["headers"] == {"schedule.name": "minutely", "schedule.time": "2023-11-14T22:15:00.000000Z"}
    assert (job["state"], job["due_at"]) == ("ready", "2023-11-14T22:15:00.000000Z")
    state = row_of(store).state
    assert (state.last, state.outcome, state.last_job) == (at_zero.microseconds, "enqueued", id)


def test_a_job_has_the_key_the_group_the_tags_the_expiry_and_the_headers_of_its_schedule(at_zero, store):
    schedule = MINUTELY._replace(
        key="k", on_failure="hold", group="g", tags=("a", "b"), expires=90.0, headers={"source": "cron"}
    )
    fire(store, schedule)
    at_zero.step(MINUTE)
    ((first,),) = fire(store, schedule)
    at_zero.step(MINUTE)
    ((second,),) = fire(store, schedule)
    job = store.get(first)
    assert (job["key"], job["on_failure"], job["group"], job["tags"]) == ("k", "hold", "g", ["a", "b"])
    assert job["expires_at"] == "2023-11-14T22:16:30.000000Z"
    assert job["headers"] == {
        "source": "cron", "schedule.name": "minutely", "schedule.time": "2023-11-14T22:15:00.000000Z",
    }  # fmt: skip
    assert [store.get(id)["state"] for id in (first, second)] == ["ready", "blocked"], "in the order of the key"


def test_jitter_delays_the_job_and_not_the_schedule(at_zero, store):
    schedule = MINUTELY._replace(jitter=20.0)
    fire(store, schedule)
    at_zero.step(MINUTE)
    ((id,),) = fire(store, schedule, random=lambda: 0.25)
    job = store.get(id)
    assert (job["state"], job["due_at"]) == ("scheduled", "2023-11-14T22:15:05.000000Z")
    assert row_of(store).state.last == at_zero.microseconds


@pytest.mark.parametrize(("random", "delay"), [(0.0, 0.0), (0.25, 5.0), (0.999, 19.98)])
def test_the_delay_is_from_nothing_up_to_the_jitter(random, delay):
    (row,) = rows_of(MINUTELY._replace(jitter=20.0), [60_000_000], lambda: random)
    assert row.delay == pytest.approx(delay) and row.delay < 20.0
    (row,) = rows_of(MINUTELY, [60_000_000], lambda: random)
    assert row.delay is None


def test_one_of_many_supervisors_enqueues(factory, at_zero, store):
    others = [factory.joined(f"other {n}") for n in range(3)]
    for each in (store, *others):
        fire(each)
    for _ in range(5):
        at_zero.step(MINUTE)
        ids = [id for each in (*others, store) for id in fire(each)[0]]
        assert len(ids) == 1
    assert len([*store.list_jobs()]) == 5


def test_others_are_notified_of_the_job(factory, at_zero, store):
    other = factory.joined("two")
    fire(store)
    factory.clear_notifications(other)
    at_zero.step(MINUTE)
    fire(store)
    assert factory.notified(other)


def test_the_state_of_the_last_job_is_known(at_zero, store):
    alone = MINUTELY._replace(overlap="skip", queue="default")
    fire(store, alone)
    at_zero.step(MINUTE)
    ((first,),) = fire(store, alone)
    assert (row_of(store).job_state, row_of(store).unfinished) == ("ready", True)
    lease = take_one(store)
    at_zero.step(MINUTE)
    assert fire(store, alone) == [[]]
    assert row_of(store).state.outcome == f"skipped: its last job {first} has not ended"
    store.settle([success(lease)])
    assert (row_of(store).job_state, row_of(store).unfinished) == ("succeeded", False)
    at_zero.step(MINUTE)
    ((second,),) = fire(store, alone)
    store.cancel([second])
    store.delete([second])
    assert (row_of(store).job_state, row_of(store).unfinished) == (None, False)
    at_zero.step(MINUTE)
    assert len(fire(store, alone)[0]) == 1


def test_a_paused_schedule_fires_nowhere_until_it_is_resumed(factory, at_zero, store):
    other = factory.joined("two")
    fire(store)
    set_paused(other, True)
    at_zero.step(MINUTE)
    assert (fire(store), row_of(store).state.paused, row_of(store).state.outcome) == ([[]], True, "paused")
    at_zero.step(10 * MINUTE)
    set_paused(other, False)
    assert fire(store, MINUTELY._replace(on_missed="all")) == [[]]
    at_zero.step(MINUTE)
    assert len(fire(store)[0]) == 1


def test_a_schedule_can_be_paused_before_any_supervisor_has_it(at_zero, store):
    set_paused(store, True)
    assert row_of(store).state == ScheduleState("minutely", since=at_zero.microseconds, paused=True)
    fire(store)
    at_zero.step(MINUTE)
    assert fire(store) == [[]]


def test_a_schedule_that_is_forgotten_starts_anew_if_it_comes_again(at_zero, store):
    other, since = MINUTELY._replace(name="other"), {}
    fire(store, MINUTELY, other, since=since)
    at_zero.step(MINUTE)
    fire(store, MINUTELY, other, since=since)
    forget = [ScheduleChange(row_of(store).state, forget=True)]
    assert store.change_schedules(["minutely"], lambda now, rows: forget, wait=True) == [[]]
    assert [row.state.name for row in store.schedules()] == ["other"]
    assert len([*store.list_jobs()]) == 2
    at_zero.step(10.0)
    assert fire(store, MINUTELY, other, since=since) == [[], []], "a supervisor that still has it fires no time again"
    at_zero.step(50.0)
    assert [len(ids) for ids in fire(store, MINUTELY, other, since=since)] == [1, 1]
    assert (row_of(store).state.last, row_of(store).state.outcome) == (at_zero.microseconds, "enqueued")


def test_several_schedules_are_decided_in_one_transaction(at_zero, store):
    hourly = Schedule("hourly", "sweep", Cron("0 * * * *"))
    often = Schedule("often", "ping", Every(10_000_000), on_missed="all")
    all_of_them = (MINUTELY, hourly, often)
    assert fire(store, *all_of_them) == [[], [], []]
    at_zero.step(MINUTE)
    made = fire(store, *all_of_them)
    assert [len(ids) for ids in made] == [0, 1, 6], "in the order of their names"
    assert [row.state.name for row in store.schedules()] == ["hourly", "minutely", "often"]
    assert row_of(store, "often").state.last_job == made[2][-1]


def test_a_transaction_that_fails_changes_no_row_and_makes_no_job(at_zero, store):
    fire(store)
    at_zero.step(MINUTE)
    before = store.schedules()
    with pytest.raises(ZeroDivisionError), store.transaction():
        fire(store)
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        store.change_schedules(["minutely", "new"], lambda now, rows: 1 / 0)
    assert (store.schedules(), [*store.list_jobs()]) == (before, [])
    assert len(fire(store)[0]) == 1


def test_a_decision_shares_its_commit_with_other_work(at_zero, store):
    fire(store)
    at_zero.step(MINUTE)
    with store.transaction():
        put(store)
        fire(store)
    assert len([*store.list_jobs()]) == 2


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_clock_that_is_stepped_by_an_hour_brings_no_fire_time_twice(at_zero, store, step):
    schedule, since, times = MINUTELY._replace(on_missed="all"), {}, []
    fire(store, schedule, since=since)
    begin = latest = at_zero.microseconds
    for n in range(130):
        at_zero.step(30.0 if n != 20 else step)
        latest = max(latest, at_zero.microseconds)
        (ids,) = fire(store, schedule, since=since)
        times += [store.get(id)["headers"]["schedule.time"] for id in ids]
    assert len(times) == len(set(times))
    assert times == sorted(times)
    assert len(times) == len(schedule.timing.due(begin, latest, 1000).times), "none is lost"


@IN_SQL
def test_a_crash_neither_loses_nor_repeats_a_fire_time(factory, at_zero):
    store = factory.joined("one")
    fire(store)
    at_zero.step(MINUTE)
    made = fire(store)[0]
    factory.crash()
    factory.restart()
    after = factory.joined("after")
    assert fire(after) == [[]]
    at_zero.step(MINUTE)
    made += fire(after)[0]
    assert [job["id"] for job in after.list_jobs()] == sorted(made, reverse=True)
    assert len(made) == 2
    factory.check()


@IN_SQL
def test_a_backup_that_is_restored_brings_fire_times_again_whose_jobs_it_lacks(factory, at_zero, store):
    schedule, since = MINUTELY._replace(on_missed="all"), {}
    fire(store, schedule, since=since)
    at_zero.step(MINUTE)
    kept = fire(store, schedule, since=since)[0]
    factory.save()
    at_zero.step(MINUTE)
    fire(store, schedule, since=since)
    factory.go_back()
    assert [job["id"] for job in store.list_jobs()] == kept
    at_zero.step(MINUTE)
    again = fire(store, schedule, since=since)[0]
    assert [store.get(id)["headers"]["schedule.time"][14:16] for id in (*kept, *again)] == ["15", "16", "17"]


@IN_SQL
def test_supervisors_that_decide_at_the_same_moment_enqueue_one_job(factory, at_zero):
    stores = [factory.joined(f"owner {n}") for n in range(4)]
    fire(stores[0])
    made, errors = [], []

    def race(store, ready):
        ready.wait()
        for _ in range(20):
            try:
                made.extend(id for ids in fire(store) for id in ids)
            except StoreError as error:
                errors.append(error)

    for _ in range(5):
        at_zero.step(MINUTE)
        ready = threading.Barrier(len(stores), timeout=30.0)
        all_at_once(*(partial(race, store, ready) for store in stores))
    assert errors == []
    assert len(made) == len(set(made)) == 5
    times = [job["headers"]["schedule.time"] for job in stores[0].list_jobs()]
    assert len(times) == len(set(times)) == 5


@IN_SQL
def test_new_schedules_are_made_by_two_at_once(factory, at_zero):
    stores = [factory.joined(f"owner {n}") for n in range(2)]
    names = [f"schedule {n}" for n in range(50)]
    ready = threading.Barrier(2, timeout=30.0)

    def make(store, names):
        ready.wait()
        fire(store, *[MINUTELY._replace(name=name) for name in names])

    all_at_once(partial(make, stores[0], names), partial(make, stores[1], names[::-1]))
    assert [row.state.name for row in stores[0].schedules()] == sorted(names)


@ON_POSTGRESQL
def test_a_row_that_another_session_has_locked_is_left_out(factory, at_zero, store):
    other = Schedule("other", "mail", Cron("* * * * *"))
    fire(store, MINUTELY, other)
    at_zero.step(MINUTE)
    with factory.admin.transaction():
        factory.sql("select from {s}.schedules where name = 'minutely' for update")
        assert [len(ids) for ids in fire(store, MINUTELY, other)] == [1]
        assert row_of(store).state.last is None
    assert [len(ids) for ids in fire(store, MINUTELY, other)] == [1, 0]


@ON_POSTGRESQL
def test_a_person_waits_for_a_row_that_a_supervisor_has_locked(factory, at_zero, store):
    other = factory.joined("two")
    fire(store)
    at_zero.step(MINUTE)
    with store.transaction():
        fire(store)
        paused_by = beside(factory, set_paused, other, True)
    paused_by.join()
    state = row_of(store).state
    assert (state.paused, state.outcome) == (True, "enqueued"), "neither change is lost"


@IN_SQL
def test_names_and_texts_of_any_kind_are_kept(factory, at_zero, store):
    schedule = MINUTELY._replace(name="Café „5“ 'x' \\ 100%", payload=json.dumps({"text": "ä\n'"}))
    fire(store, schedule)
    at_zero.step(MINUTE)
    ((id,),) = fire(store, schedule)
    assert store.get(id)["payload"] == {"text": "ä\n'"}
    assert store.get(id)["headers"]["schedule.name"] == schedule.name
    assert row_of(store, schedule.name).state.last_job == id


@IN_SQL
@pytest.mark.parametrize("column", ["since", "last"])
def test_a_time_that_no_supervisor_could_read_is_refused(factory, at_zero, store, column):
    fire(store)
    with pytest.raises(Exception, match=r"(?i)check|constraint|invalid|syntax"):
        factory.sql(f"update {{s}}.schedules set {column} = 'soon'")
    assert fire(store) == [[]]


def test_a_person_enqueues_a_job_of_a_schedule_between_its_fire_times(at_zero, store):
    fire(store)

    def change(now, rows):
        (row,) = rows.values()
        return [ScheduleChange(row.state, [EnqueueRow("mail", "7")])]

    ((id,),) = store.change_schedules(["minutely"], change, wait=True)
    state = row_of(store).state
    assert (state.last, state.last_job) == (None, id)
    at_zero.step(MINUTE)
    assert len(fire(store)[0]) == 1
