"""Workers of a group run the jobs of its queues only, and a backlog of these takes no worker, and no claim, of the others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from supervisor.config.settings import Settings
from supervisor.engine.limits import DEFAULT_LIMITS
from supervisor.engine.scaling import Growth
from supervisor.engine.store_writer import Purpose
from supervisor.events import JobsReleased, WorkersScaled
from supervisor.plugins.reports import SourceReport
from supervisor.stores.records import ClaimRequest
from tests.unit.fakes import FakeBackend, FakeWorker
from tests.unit.virtual import Virtual

INTERVAL = DEFAULT_LIMITS.scaling
GROW_AFTER = 0.2
MAIL: dict[str, Any] = {"mail": {"queues": ["mail", "invites"], "count": 2}}


def virtual(count: Any = 1, groups: dict[str, Any] = MAIL, **settings: Any) -> Virtual:
    here = Virtual(count, groups=groups, **settings)
    here.serve()
    return here


def of_group(here: Virtual, name: str = "") -> list[FakeWorker]:
    return [slot.process for slot in here.pool.groups[name].workers.values()]  # type: ignore[misc]


def sent(here: Virtual, name: str = "") -> list[int]:
    return sorted(lease.id for slot in here.pool.groups[name].workers.values() for lease in slot.sent)


def in_flight(here: Virtual, ids: list[int]) -> int:
    return Counter(here.state(id) for id in ids)["in_flight"]


def come_up(here: Virtual, seconds: float) -> None:
    """Let time pass; each worker that is forked meanwhile is ready by the next look."""
    known = len(here.backend.forked)
    for _ in range(round(seconds / INTERVAL)):
        here.loop.advance(INTERVAL)
        for process in here.backend.forked[known:]:
            process.come_up()
        known = len(here.backend.forked)


def releases(here: Virtual) -> list[str]:
    return [event.reason for event in here.events if isinstance(event, JobsReleased)]


def scaled(here: Virtual) -> list[tuple[str, int, int, str]]:
    return [tuple(event) for event in here.events if isinstance(event, WorkersScaled)]


def test_a_backlog_of_one_group_is_claimed_as_its_workers_become_free_and_no_other_job_waits_for_it() -> None:
    here = virtual()
    mails = here.enqueue(*["work"] * 500, queue="mail")
    here.notify()
    assert (in_flight(here, mails), len(sent(here, "mail")), sent(here)) == (2, 2, [])
    (other,) = here.enqueue("work")
    here.notify()
    assert sent(here) == [other]
    assert in_flight(here, mails) == 2
    of_group(here, "mail")[0].run_next(took=10.0)
    assert (in_flight(here, mails), len(sent(here, "mail"))) == (2, 2)


def test_jobs_of_other_queues_wait_though_workers_of_a_group_are_idle() -> None:
    here = virtual()
    here.enqueue(*["work"] * 5)
    here.notify()
    assert (len(sent(here)), sent(here, "mail")) == (1, [])


def test_the_queues_of_a_group_share_its_room() -> None:
    here = virtual()
    mails, invites = (here.enqueue(*["work"] * 10, queue=queue) for queue in ("mail", "invites"))
    here.notify()
    assert (in_flight(here, mails), in_flight(here, invites)) == (1, 1)


def test_quick_jobs_of_a_group_are_claimed_ahead_by_their_own_run_times() -> None:
    here = virtual()
    here.pool.others.times.learn("work", [60.0])
    here.pool.groups["mail"].times.learn("work", [0.010] * 9)
    mails, others = here.enqueue(*["work"] * 100, queue="mail"), here.enqueue(*["work"] * 100)
    here.notify()
    assert (in_flight(here, mails), in_flight(here, others)) == (20, 1)


def claims(here: Virtual) -> list[Purpose]:
    """Return the list in which each claim from now on is noted."""
    found, submit = list[Purpose](), here.writer.submit

    def noted(call: Any, purpose: Purpose = Purpose.READ, did_work: Any = None) -> Any:
        found.extend([purpose] if purpose is Purpose.CLAIM else [])
        return submit(call, purpose, did_work)

    here.writer.submit = noted  # type: ignore[method-assign]
    return found


def test_a_group_of_which_no_job_is_left_in_the_store_causes_no_claim() -> None:
    here = virtual()
    here.enqueue(*["work"] * 500, queue="mail")
    here.notify()
    found = claims(here)
    for number in range(1, 5):
        of_group(here, "mail")[0].run_next(took=10.0)
        assert len(found) == number


def test_retries_of_a_full_group_overtake_its_fresh_jobs_while_other_groups_have_room() -> None:
    here = virtual(retry={"backoff": {"base": 1.0, "jitter": "none"}})
    here.pool.groups["mail"].times.learn("work", [0.010] * 9)
    here.enqueue(*["work"] * 100, queue="mail")
    here.notify()
    failed, running = of_group(here, "mail")
    running.start_next()
    id = failed.start_next().id
    failed.finish(kind="failed", error={"type": "E", "message": "", "traceback": ""})
    failed.drain()
    failed.start_next()
    assert here.state(id) == "scheduled"
    here.wall.step(1.1)
    here.loop.advance(1.1)
    assert here.state(id) == "in_flight"
    assert [lease.id for lease in here.engine.buffers.jobs()].index(id) == 0


def test_surplus_jobs_of_a_group_are_released_by_the_number_and_run_times_of_its_workers() -> None:
    here = virtual()
    here.pool.groups["mail"].times.learn("work", [0.010] * 9)
    mails = here.enqueue(*["work"] * 100, queue="mail")
    here.notify()
    assert in_flight(here, mails) == 20
    here.pool.groups["mail"].times.at_least("work", 5.0)
    for process in of_group(here, "mail"):
        process.start_next()
    here.engine.maintain("running")
    assert in_flight(here, mails) == 4


def test_a_full_group_releases_its_jobs_to_an_idle_supervisor_though_another_group_is_idle() -> None:
    here = virtual()
    here.pool.groups["mail"].times.learn("work", [0.040] * 9)
    mails = here.enqueue(*["work"] * 8, queue="mail")
    here.notify()
    for process in of_group(here, "mail"):
        process.start_next()
    assert in_flight(here, mails) == 6
    here.neighbour_idles()
    here.loop.advance(1.5)
    here.engine.maintain("running")
    assert releases(here) == ["others idle"]
    assert in_flight(here, mails) == 2


def test_a_job_that_comes_for_another_group_during_a_claim_is_claimed_after_it() -> None:
    here = virtual()
    here.enqueue(*["work"] * 10, queue="mail")
    claim, came = here.store.claim, list[int]()

    def claim_while_one_comes(*arguments: Any) -> Any:
        leases = claim(*arguments)
        if not came:
            came.extend(here.enqueue("work"))
            here.notify()
        return leases

    here.store.claim = claim_while_one_comes  # type: ignore[method-assign]
    here.notify()
    assert sent(here) == came


def test_the_share_of_retries_is_that_of_the_workers_of_their_group_and_counts_the_jobs_in_the_store() -> None:
    here = virtual(count=5)
    here.enqueue(*["work"] * 500, queue="mail")
    here.notify()
    assert {name: part.workers for name, part in here.engine.fetcher._planner.demand(9).groups.items()} == {
        "": 5,
        "mail": 2,
    }
    assert here.engine.buffers.groups["mail"].of("mail").fresh_in_store == 498


def test_the_jobs_of_a_claim_under_way_take_the_room_of_their_group_only() -> None:
    here = virtual()
    for group in here.pool.groups.values():
        group.times.learn("work", [0.010] * 9)
    planner = here.engine.fetcher._planner
    assert planner.room(0) == 10 + 20
    assert {name: part.capacity for name, part in planner.demand(30).groups.items()} == {"": 10, "mail": 20}
    assert planner.room(20, {"": 0, "mail": 20}) == 10
    assert planner.room(10, {"": 10, "mail": 0}) == 20
    assert planner.room(0, only={"mail"}) == 20
    assert {name: part.capacity for name, part in planner.demand(10, {"mail": 20}).groups.items()} == {
        "": 10,
        "mail": 0,
    }


def test_a_claim_that_begins_while_another_is_under_way_asks_for_the_rest_of_the_room_of_each_group() -> None:
    limits = DEFAULT_LIMITS._replace(claimed_at_once=20)
    here = virtual(engine_limits=limits)
    here.pool.groups["mail"].times.learn("work", [0.010] * 9)
    here.writer.eager = False
    mails = here.enqueue(*["work"] * 100, queue="mail")
    here.notify()
    (first,) = here.engine.fetcher._claims
    first.begun = True  # by the thread of the writer
    here.pool.others.times.learn("work", [0.001])
    here.engine.fetcher.pump()
    assert [claim.by_group for claim in here.engine.fetcher._claims] == [{"": 1, "mail": 20}, {"": 20, "mail": 0}]
    here.writer.step_one()
    assert in_flight(here, mails) == 20


def test_the_buffered_jobs_of_a_paused_queue_of_a_group_are_released_and_those_beside_it_are_kept() -> None:
    here = virtual()
    here.pool.groups["mail"].times.learn("work", [0.010] * 9)
    mails, invites = (here.enqueue(*["work"] * 10, queue=queue) for queue in ("mail", "invites"))
    here.notify()
    for process in of_group(here, "mail"):
        process.start_next()
    running = {lease.queue for slot in here.pool.groups["mail"].workers.values() for lease in slot.sent}
    assert (in_flight(here, mails), in_flight(here, invites), running) == (10, 10, {"mail", "invites"})
    here.store.pause("mail", True)
    here.engine.maintain("running")
    assert (in_flight(here, mails), in_flight(here, invites)) == (1, 10)


# --- reloads


def reload(here: Virtual, **workers: Any) -> FakeBackend:
    settings = Settings(workers={"count": 1, **workers})
    infos = tuple(here.engine.config.handlers.values())
    here.backend = FakeBackend()
    here.engine.renew(settings, here.backend, [SourceReport("work.py", infos)])
    for process in here.backend.forked:
        process.come_up()
    return here.backend


def test_a_reload_changes_the_groups_and_no_buffered_job_is_lost() -> None:
    here = virtual()
    here.pool.groups["mail"].times.learn("work", [0.010] * 9)
    mails = here.enqueue(*["work"] * 20, queue="mail")
    here.notify()
    old = [*here.backend.forked]
    new = reload(here, groups={"invites": {"queues": ["invites"], "count": 3}})
    assert len(new.forked) == 1 + 3
    assert all(process.retired for process in old)
    for process in old:
        process.die(exit_code=0)
    assert in_flight(here, mails) == 20
    done = 0
    while done < 20:
        of_group(here)[0].run_next()
        done += 1
    assert {here.state(id) for id in mails} == {"succeeded"}
    assert sorted(here.pool.groups) == ["", "invites"]
    assert len(here.pool.workers) == 4


def test_a_count_set_by_signals_holds_until_a_reload_brings_another_one() -> None:
    here = virtual()
    here.pool.resize(4)
    assert len(reload(here, groups=MAIL).forked) == 4 + 2
    assert len(reload(here, count=2, groups=MAIL).forked) == 2 + 2


def test_groups_without_a_served_queue_and_workers_without_one_are_not_started() -> None:
    groups = {**MAIL, "img": {"queues": ["img"], "count": 5}}
    here = Virtual(3, served=("mail",), groups=groups)
    here.serve()
    assert [(name, len(group.workers)) for name, group in here.pool.groups.items()] == [("", 0), ("mail", 2)]
    (id,) = here.enqueue("work", queue="mail")
    here.notify()
    assert sent(here, "mail") == [id]
    assert len(reload(here, queues=["mail", "img"], groups=groups).forked) == 2 + 5


# --- groups that grow and shrink


def test_a_group_grows_by_one_worker_for_each_job_that_waited_long_enough_and_not_for_those_starting() -> None:
    growth = Growth(GROW_AFTER)
    assert growth.step(0.0, waiting=9, idle=0, starting=0, most=2) == 0
    assert growth.step(0.1, waiting=9, idle=0, starting=0, most=2) == 0
    assert growth.step(GROW_AFTER, waiting=9, idle=0, starting=0, most=2) == 2
    assert growth.step(GROW_AFTER + 0.1, waiting=9, idle=0, starting=2, most=4) == 0
    assert growth.step(2 * GROW_AFTER, waiting=5, idle=0, starting=2, most=4) == 3
    assert growth.step(3 * GROW_AFTER, waiting=3, idle=0, starting=3, most=4) == 0
    assert growth.step(4 * GROW_AFTER, waiting=4, idle=0, starting=0, most=4) == 0
    assert growth.step(5 * GROW_AFTER, waiting=4, idle=1, starting=0, most=4) == 0
    assert growth.step(5.1 * GROW_AFTER, waiting=4, idle=0, starting=0, most=4) == 0
    assert growth.step(6.2 * GROW_AFTER, waiting=4, idle=0, starting=0, most=0) == 0


ELASTIC = {"mail": {"queues": ["mail"], "count": {"min": 1, "max": 6, "idle_after": 10.0}}}


def test_a_group_doubles_while_jobs_wait_and_claims_no_more_than_it_can_grow_by() -> None:
    here = virtual(groups=ELASTIC)
    mails = here.enqueue(*["work"] * 100, queue="mail")
    here.notify()
    assert (len(sent(here, "mail")), in_flight(here, mails)) == (1, 2)
    seen = []
    for _ in range(12):
        come_up(here, INTERVAL)
        seen.append((here.pool.groups["mail"].count, in_flight(here, mails)))
    assert [*dict.fromkeys(count for count, _ in seen)] == [1, 2, 4, 6]
    assert all(jobs <= 2 * count and jobs <= 6 for count, jobs in seen)
    assert len(sent(here, "mail")) == in_flight(here, mails) == 6
    assert scaled(here) == [
        ("workers.groups.mail.count", 1, 2, "1 job waits"),
        ("workers.groups.mail.count", 2, 4, "2 jobs wait"),
        ("workers.groups.mail.count", 4, 6, "2 jobs wait"),
    ]
    assert len(here.pool.others.workers) == 1


def test_idle_workers_leave_after_their_time_and_none_with_a_job() -> None:
    here = virtual(groups=ELASTIC)
    here.enqueue(*["work"] * 6, queue="mail")
    here.notify()
    come_up(here, 2.0)
    processes = of_group(here, "mail")
    assert len(processes) == 6
    for process in processes[1:]:
        process.run_next(took=2.0)
    come_up(here, 9.8)
    assert [process.retired for process in processes] == [False] * 6
    here.enqueue("work", queue="mail")
    here.notify()
    busy = [process for process in processes if process.permits or process.jobs]
    assert len(busy) == 2
    come_up(here, 0.4)
    assert [process.retired for process in processes] == [process not in busy for process in processes]
    assert here.pool.groups["mail"].count == 2
    assert scaled(here)[-1] == ("workers.groups.mail.count", 6, 2, "4 idle for 10s")
    for process in busy:
        process.run_next(took=1.0)
    come_up(here, 15.0)
    assert here.pool.groups["mail"].count == 1
    assert sum(process.retired for process in processes) == 5
    assert len(here.backend.forked) == 1 + 6


def test_workers_that_fail_to_start_stop_the_growth() -> None:
    here = virtual(groups=ELASTIC)
    mails = here.enqueue(*["work"] * 100, queue="mail")
    here.notify()
    for _ in range(100):
        known = len(here.backend.forked)
        here.loop.advance(INTERVAL)
        for process in here.backend.forked[known:]:
            process.die(exit_code=1)
    assert len(here.backend.forked) < 20
    assert here.pool.groups["mail"].count == 2
    assert in_flight(here, mails) == 2


def test_a_reload_changes_the_limits_of_a_group_that_has_grown() -> None:
    here = virtual(groups=ELASTIC)
    here.enqueue(*["work"] * 100, queue="mail")
    here.notify()
    come_up(here, 2.0)
    reload(here, groups={"mail": {"queues": ["mail"], "count": {"min": 1, "max": 3}}})
    assert (here.pool.groups["mail"].count, len(of_group(here, "mail"))) == (3, 6 + 3)
    reload(here, groups={"mail": {"queues": ["mail"], "count": {"min": 5, "max": 8}}})
    assert here.pool.groups["mail"].count == 5


def test_a_group_that_a_reload_gives_limits_grows_and_one_that_loses_them_has_no_timer() -> None:
    here = virtual()
    here.enqueue(*["work"] * 100, queue="mail")
    here.notify()
    reload(here, groups={"mail": {"queues": ["mail"], "count": {"min": 2, "max": 4}}})
    come_up(here, 2.0)
    assert len(sent(here, "mail")) >= 4
    assert here.pool.groups["mail"].count == 4
    reload(here, groups=MAIL)
    assert here.engine.scaling._timer is None or here.engine.scaling._timer.cancelled()


def test_jobs_for_workers_that_are_starting_are_no_surplus() -> None:
    here = virtual(groups=ELASTIC)
    mails = here.enqueue(*["work"] * 100, queue="mail")
    here.notify()
    come_up(here, 0.3)
    here.loop.advance(0.3)
    here.notify()
    assert (here.pool.groups["mail"].count, len(sent(here, "mail")), in_flight(here, mails)) == (4, 2, 2 + 2 + 2)
    here.pool.groups["mail"].times.at_least("work", 5.0)
    here.engine.maintain("running")
    assert in_flight(here, mails) == 6
    assert releases(here) == []


def test_a_worker_on_trial_for_a_reload_is_not_retired_for_being_idle() -> None:
    here = virtual(count={"min": 1, "max": 3, "idle_after": 0.5}, groups={})
    here.pool.others.set_count(2)
    for process in here.backend.forked:
        process.come_up()
    trial = FakeBackend()
    slot = here.pool.fork_first(trial, here.pool.limits)
    trial.forked[0].come_up()
    here.loop.advance(2.0)
    assert slot.state.name == "READY"
    assert (here.pool.others.count, sum(process.retired for process in here.backend.forked)) == (1, 1)


def test_the_workers_of_all_other_queues_may_grow_too_and_signals_change_their_most() -> None:
    here = virtual(count={"min": 1, "max": 2}, groups={})
    here.enqueue(*["work"] * 100)
    here.notify()
    come_up(here, 2.0)
    assert here.pool.others.count == 2
    assert scaled(here) == [("workers.count", 1, 2, "1 job waits")]
    here.pool.resize(3)
    come_up(here, 2.0)
    assert (here.pool.others.count, here.pool.others.size[:2]) == (3, (1, 3))
    here.pool.resize(1)
    assert (here.pool.others.count, here.pool.others.size[:2]) == (1, (1, 1))


@pytest.mark.parametrize("groups", [{}, MAIL])
def test_without_limits_there_is_no_timer(groups: dict[str, Any]) -> None:
    here = virtual(groups=groups)
    assert here.engine.scaling._timer is None


def test_a_job_that_another_supervisor_gave_up_is_claimed_by_the_group_that_is_free() -> None:
    here = virtual()
    (id,) = here.enqueue("work", queue="invites")
    here.store.claim([ClaimRequest("invites", 1, 0, 0, 100)], 30.0, here.engine.config.resolve)
    for _ in range(10):
        here.engine.maintain("running")
    assert sent(here, "mail") == [id]


def test_the_first_worker_of_a_reload_is_not_left_in_a_group_that_this_reload_removes() -> None:
    here = Virtual(groups={"mail": {"queues": ["mail"], "count": 1}}, served=("mail",))
    here.serve()
    assert here.pool.others.count == 0
    settings = Settings(workers={"queues": ["mail"], "count": 1})
    trial = FakeBackend()
    here.pool.fork_first(trial, here.pool.limits)
    trial.forked[0].come_up()
    here.engine.renew(settings, trial, here.engine.config.reports)
    for process in trial.forked[1:]:
        process.come_up()
    assert [process.retired for process in trial.forked] == [True, False]
