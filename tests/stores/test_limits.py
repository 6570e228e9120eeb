"""Limits of queues and handlers: no more jobs are in flight, or are claimed within a time, and other jobs are not held up."""

from __future__ import annotations

import pytest

from supervisor.jobs import JobState
from supervisor.stores.extras import Extras
from supervisor.stores.job_limits import JobLimits, Limit
from supervisor.stores.records import ClaimRequest, EnqueueRow, Waiting
from tests.stores.factories import TTL, again, dead, promote, release, resolve, states, success, take

WITHOUT_KAFKA = "its config refuses limits"

MINUTE = 60_000_000
TWO = Limit(running=2)


def queues(**limits):
    return JobLimits(limits, {})


def handlers(**limits):
    return JobLimits({}, limits)


def put(store, n=1, handler="mail", queue="default", **options):
    return store.enqueue([EnqueueRow(handler, "{}", queue=queue, **options) for _ in range(n)])


def claim(store, limits, n=10, queue="default", room=100, retries=None):
    """Claim as the engine does."""
    request = ClaimRequest(queue, n, 0, n if retries is None else retries, 100)
    with store.transaction():
        allowance = store.allowance(limits, None)
        return store.claim_limited(allowance.asked([request], room), TTL, resolve, allowance, room)


def ids_of(claimed):
    return [lease.id for lease in claimed.leases]


def waiting(store, limits, served=None):
    with store.transaction():
        return store.allowance(limits, served).claimable(store.look(served, 1000).waiting)


@pytest.mark.parametrize("limits", [queues(default=TWO), handlers(mail=TWO)])
def test_no_more_jobs_are_in_flight_than_the_limit_allows(store, limits):
    ids = put(store, 5)
    first = claim(store, limits)
    assert ids_of(first) == ids[:2]
    assert ids_of(claim(store, limits)) == []
    store.settle([success(first.leases[0])])
    second = claim(store, limits)
    assert ids_of(second) == ids[2:3]
    store.settle([success(lease) for lease in (*second.leases, first.leases[1])])
    assert ids_of(claim(store, limits)) == ids[3:]


@pytest.mark.parametrize("limits", [queues(default=TWO), handlers(mail=TWO)])
def test_the_leases_of_all_supervisors_count(factory, store, limits):
    ids, other = put(store, 4), factory.joined("two")
    assert ids_of(claim(store, limits, 1)) == ids[:1]
    assert ids_of(claim(other, limits)) == ids[1:2]
    assert ids_of(claim(store, limits)) == []


@pytest.mark.parametrize("limits", [queues(default=TWO), handlers(mail=TWO)])
@pytest.mark.parametrize("end", [success, release, again, dead])
def test_every_outcome_gives_a_place_back(store, limits, end):
    put(store, 3)
    (lease, _) = claim(store, limits).leases
    store.settle([end(lease)])
    assert len(claim(store, limits).leases) == 1


@pytest.mark.parametrize("limits", [queues(default=TWO), handlers(mail=TWO)])
def test_a_lost_lease_counts_until_it_is_recovered(factory, store, limits):
    ids = put(store, 4)
    claim(store, limits)
    other = factory.joined("two")
    factory.clock.step(3600)
    assert ids_of(claim(other, limits)) == []
    expired, _ = other.expired_leases(10)
    other.recover([release(expired.lease)._replace(seen=expired.deadline)])
    assert len(claim(other, limits).leases) == 1
    assert ids_of(claim(other, limits)) == []
    assert states(store, ids).count("in_flight") == 2


@pytest.mark.parametrize("limits", [queues(default=TWO), handlers(mail=TWO)])
def test_an_outcome_that_comes_too_late_gives_no_second_place_back(factory, store, limits):
    """The supervisor was stopped for a while: another one has recovered its jobs, and runs them."""
    put(store, 5)
    leases = claim(store, limits).leases
    other = factory.joined("two")
    factory.clock.step(3600)
    outcomes = [release(it.lease)._replace(seen=it.deadline) for it in other.expired_leases(10)]
    other.recover(outcomes)
    assert len(claim(other, limits).leases) == 2
    assert store.settle([success(lease) for lease in leases]) == [lease.id for lease in leases]
    assert claim(store, limits).leases == claim(other, limits).leases == []


def test_a_cancelled_job_gives_its_place_back(store):
    put(store, 3)
    (lease, _) = claim(store, handlers(mail=TWO)).leases
    store.cancel([lease.id])
    assert len(claim(store, handlers(mail=TWO)).leases) == 1


def test_jobs_of_a_handler_at_its_limit_hold_up_no_others(store):
    limits = handlers(mail=TWO)
    mails = put(store, 50)
    others = put(store, 5, "other")
    claimed = claim(store, limits, 4)
    assert ids_of(claimed) == mails[:2]
    assert ids_of(claim(store, limits, 4)) == others[:4]
    assert states(store, mails[2:]) == ["blocked"] * 48
    assert waiting(store, limits) == {"default": Waiting(1, 0)}


def test_a_claim_reports_the_jobs_that_it_has_held_back(store):
    put(store, 10)
    limits = handlers(mail=TWO)
    assert len(claim(store, limits, 2).leases) == 2
    claimed = claim(store, limits, 4)
    assert claimed.held == {("default", 0): 8}
    assert not claimed.more
    assert waiting(store, limits) == {}


def test_a_claim_goes_on_once_if_jobs_were_held_back_only_for_lack_of_room(store):
    """The claim that follows finds that jobs wait for a worker. It does not go on again, or it would do so for ever."""
    put(store, 10)
    limits = handlers(mail=TWO)
    found = [claim(store, limits, room=0) for _ in range(2)]
    assert [(it.leases, it.held.total(), it.more) for it in found] == [([], 10, True), ([], 0, False)]
    assert waiting(store, limits) == {"default": Waiting(2, 0)}
    assert len(claim(store, limits, room=1).leases) == 1


def test_jobs_that_are_held_back_are_moved_once_and_go_on_by_priority_then_age(store):
    limits = handlers(mail=Limit(running=1))
    low = put(store, 3)
    high = put(store, 2, priority=5)
    order = []
    (lease,) = claim(store, limits, 1).leases
    assert claim(store, limits).leases == []
    for _ in range(5):
        order.append(lease.id)
        store.settle([success(lease)])
        for next_lease in claim(store, limits).leases:
            lease = next_lease
    assert order == [*high, *low]


def test_new_jobs_of_a_handler_wait_behind_those_that_are_held_back(store):
    limits = handlers(mail=Limit(running=1))
    first, *held = put(store, 3)
    (lease,) = claim(store, limits, 1).leases
    assert lease.id == first
    claim(store, limits)
    (new,) = put(store)
    (urgent,) = put(store, priority=200)
    order = []
    for _ in range(4):
        store.settle([success(lease)])
        (lease,) = claim(store, limits, 1).leases
        order.append(lease.id)
    assert order == [urgent, *held, new]


def test_a_limit_of_a_handler_holds_over_all_queues(store):
    limits = handlers(mail=TWO)
    put(store, 2, queue="a")
    put(store, 2, queue="b")
    assert len(claim(store, limits, queue="a").leases) == 2
    assert claim(store, limits, queue="b").leases == []


def test_both_limits_of_a_job_hold(store):
    limits = JobLimits({"default": Limit(running=3)}, {"mail": Limit(running=1)})
    put(store, 3)
    put(store, 5, "other")
    for _ in range(3):
        claim(store, limits)
    in_flight = list(store.list_jobs(state=JobState.IN_FLIGHT))
    assert len(in_flight) == 3
    assert sum(job["handler"] == "mail" for job in in_flight) == 1


def test_a_queue_at_its_limit_does_not_hold_up_others(store):
    limits = queues(default=TWO)
    put(store, 5)
    others = put(store, 3, queue="other")
    claim(store, limits)
    assert waiting(store, limits) == {"other": Waiting(3, 0)}
    assert ids_of(claim(store, limits, queue="other")) == others


def test_a_supervisor_claims_no_more_under_limits_than_it_can_start(store):
    put(store, 5)
    assert len(claim(store, queues(default=Limit(running=4)), room=1).leases) == 1
    assert len(claim(store, handlers(mail=Limit(running=4)), room=2).leases) == 2


def test_jobs_without_a_limit_are_claimed_ahead_whatever_the_room_is(store):
    others = put(store, 5, "other")
    assert ids_of(claim(store, handlers(mail=TWO), room=0)) == others


def test_a_rate_is_exact_within_any_time(factory, store):
    limits = queues(default=Limit(claims=3, per=MINUTE))
    put(store, 20)
    claimed = claim(store, limits, 2).leases
    factory.clock.step(30)
    claimed += claim(store, limits).leases
    assert len(claimed) == 3
    assert claim(store, limits).leases == []
    factory.clock.step(29.999999)
    assert claim(store, limits).leases == []
    factory.clock.step(0.000001)
    assert len(claim(store, limits).leases) == 2
    factory.clock.step(30)
    assert len(claim(store, limits).leases) == 1
    assert claim(store, limits).leases == []


def test_the_store_says_when_a_rate_allows_the_next_claim(factory, store):
    limits = handlers(mail=Limit(claims=2, per=MINUTE))
    put(store, 4)
    assert store.allowance(limits, None).next_claim is None
    claim(store, limits)
    factory.clock.step(20)
    assert store.allowance(limits, None).next_claim == pytest.approx(40)


def test_a_rate_counts_the_claims_of_all_supervisors(factory, store):
    limits = handlers(mail=Limit(claims=3, per=MINUTE))
    put(store, 10)
    other = factory.joined("two")
    assert len(claim(store, limits, 2).leases) == 2
    assert len(claim(other, limits).leases) == 1


def test_a_clock_that_is_set_back_does_not_close_a_rate_for_longer_than_its_time(factory, store):
    limits = queues(default=Limit(claims=1, per=MINUTE))
    put(store, 4)
    assert len(claim(store, limits).leases) == 1
    factory.clock.step(-50)
    assert claim(store, limits).leases == []
    assert 0 < store.allowance(limits, None).next_claim <= 61
    factory.clock.step(111)
    assert len(claim(store, limits).leases) == 1
    factory.clock.step(-86_400)
    assert len(claim(store, limits).leases) == 1
    assert claim(store, limits).leases == []


def test_a_raised_limit_lets_those_that_are_held_back_go_on(store):
    ids = put(store, 5)
    claim(store, handlers(mail=TWO))
    claim(store, handlers(mail=TWO))
    assert ids_of(claim(store, handlers(mail=Limit(running=4)))) == ids[2:4]


def test_a_lowered_limit_lets_those_that_run_end_first(store):
    put(store, 6)
    leases = claim(store, handlers(mail=Limit(running=4))).leases
    lower = handlers(mail=TWO)
    assert claim(store, lower).leases == []
    store.settle([success(lease) for lease in leases[:2]])
    assert claim(store, lower).leases == []
    store.settle([success(leases[2])])
    assert len(claim(store, lower).leases) == 1


@pytest.mark.parametrize("limits", [queues(default=TWO), handlers(mail=TWO)])
def test_a_new_limit_counts_the_jobs_that_are_in_flight(store, limits):
    put(store, 4)
    take(store, 1)
    assert len(claim(store, limits).leases) == 1


def test_jobs_are_released_once_their_handler_has_no_limit(store):
    ids = put(store, 5)
    put(store, 1, queue="other")
    claim(store, handlers(mail=TWO))
    claim(store, handlers(mail=TWO))
    assert states(store, ids[2:]) == ["blocked"] * 3
    assert store.release_held(handlers(mail=TWO), None, 10) == frozenset()
    assert store.release_held(None, frozenset(["other"]), 10) == frozenset()
    assert store.release_held(None, None, 2) == {"default"}
    assert store.release_held(None, None, 10) == {"default"}
    assert store.release_held(None, None, 10) == frozenset()
    assert [lease.id for lease in take(store)] == ids[2:]


def test_retries_that_are_held_back_stay_retries(factory, store):
    limits = handlers(mail=Limit(running=1))
    ids = put(store, 2)
    (lease,) = claim(store, limits, 1).leases
    store.settle([again(lease, delay=1.0)])
    (lease,) = claim(store, limits, 1).leases
    assert lease.id == ids[1]
    factory.clock.step(1)
    promote(store, 10)
    assert claim(store, limits).leases == []
    assert waiting(store, handlers(mail=TWO)) == {"default": Waiting(0, 1)}
    store.settle([success(lease)])
    (lease,) = claim(store, limits).leases
    assert (lease.id, lease.retries, lease.tier) == (ids[0], 1, 1)


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_job_that_is_held_back_can_be_cancelled_and_deleted(store, end):
    limits = handlers(mail=Limit(running=1))
    _, second, third = put(store, 3)
    (lease,) = claim(store, limits, 1).leases
    claim(store, limits)
    getattr(store, end)([second])
    store.settle([success(lease)])
    assert ids_of(claim(store, limits)) == [third]


def test_a_job_that_is_held_back_can_be_moved_to_another_queue(store):
    limits = handlers(mail=Limit(running=1))
    put(store)
    (lease,) = claim(store, limits, 1).leases
    first, second = put(store, 2)
    claim(store, limits)
    assert store.move([first], "other").refused == {}
    store.settle([success(lease)])
    assert waiting(store, limits) == {"default": Waiting(1, 0), "other": Waiting(1, 0)}
    assert ids_of(claim(store, limits, queue="default")) == [second]
    store.settle([success(lease) for lease in store.leases([second])])
    assert ids_of(claim(store, limits, queue="default")) == []
    assert ids_of(claim(store, limits, queue="other")) == [first]


def test_many_jobs_that_are_cancelled_in_front_of_a_line_do_not_stop_it(store):
    limits = handlers(mail=Limit(running=1))
    put(store)
    (lease,) = claim(store, limits, 1).leases
    ids = put(store, 500)
    claim(store, limits)
    store.cancel(ids[:499])
    store.settle([success(lease)])
    assert ids_of(claim(store, limits)) == [ids[499]]


def test_a_job_that_was_held_back_cancelled_and_redriven_runs_once(store):
    limits = handlers(mail=Limit(running=1))
    _, second = put(store, 2)
    (lease,) = claim(store, limits, 1).leases
    claim(store, limits)
    store.cancel([second])
    store.retry([second])
    assert states(store, [second]) == ["ready"]
    assert claim(store, limits).leases == []
    store.settle([success(lease)])
    assert ids_of(claim(store, limits)) == [second]
    assert claim(store, limits).leases == []


def test_a_paused_queue_keeps_what_is_held_back(store):
    limits = handlers(mail=Limit(running=1))
    put(store, 2)
    (lease,) = claim(store, limits, 1).leases
    claim(store, limits)
    store.settle([success(lease)])
    store.pause("default", True)
    assert waiting(store, limits) == {}
    store.pause("default", False)
    assert waiting(store, limits) == {"default": Waiting(1, 0)}
    assert waiting(store, limits, frozenset(["other"])) == {}


def test_a_drain_waits_for_what_is_held_back(store):
    put(store, 5)
    claim(store, handlers(mail=TWO))
    claim(store, handlers(mail=TWO))
    assert store.remaining(None, None) == {"in_flight": 2, "blocked": 3}


def test_a_job_with_a_key_that_is_held_back_keeps_its_key(store):
    limits = handlers(mail=Limit(running=1))
    (running,) = put(store)
    first, second = store.enqueue([EnqueueRow("mail", "{}", extras=Extras(key="a")) for _ in range(2)])
    (lease,) = claim(store, limits, 1).leases
    assert claim(store, limits).leases == []
    for expected in (first, second):
        store.settle([success(lease)])
        (lease,) = claim(store, limits).leases
        assert lease.id == expected
    assert running != lease.id


def test_a_repair_leaves_a_job_with_a_key_in_the_line_of_its_limit(factory, store):
    limits = handlers(mail=Limit(running=1))
    put(store)
    (id,) = store.enqueue([EnqueueRow("mail", "{}", extras=Extras(key="a"))])
    (lease,) = claim(store, limits, 1).leases
    assert claim(store, limits).leases == []
    assert store.repair() == ""
    assert states(store, [id]) == ["blocked"]
    store.settle([success(lease)])
    assert ids_of(claim(store, limits)) == [id]
    factory.check()


def test_a_transaction_that_fails_leaves_the_limits_as_they_were(store):
    limits = JobLimits({"default": Limit(claims=3, per=MINUTE)}, {"mail": TWO})
    ids = put(store, 5)
    with pytest.raises(RuntimeError), store.transaction():
        claim(store, limits, 2)
        claim(store, limits)
        raise RuntimeError
    assert states(store, ids) == ["ready"] * 5
    assert ids_of(claim(store, limits)) == ids[:2]
    assert claim(store, limits).leases == []
    assert states(store, ids[2:]) == ["blocked"] * 3


def test_many_held_back_jobs_of_several_handlers(store):
    limits = handlers(a=TWO, b=Limit(running=3))
    for _ in range(30):
        put(store, 10, "a")
        put(store, 10, "b")
    others = put(store, 10, "c")
    found = []
    for _ in range(20):
        found += claim(store, limits, 20).leases
    by_handler = {name: sum(lease.handler == name for lease in found) for name in "abc"}
    assert by_handler == {"a": 2, "b": 3, "c": 10}
    assert {lease.id for lease in found if lease.handler == "c"} == set(others)
