from __future__ import annotations

from supervisor.jobs import Policy
from supervisor.stores.records import ClaimRequest, Waiting
from tests.stores.factories import (
    POLICY,
    TTL,
    again,
    make_dead,
    make_retries,
    promote,
    put,
    release,
    resolve,
    state_of,
    take,
    take_one,
    waiting,
)


def test_a_lease_holds_all_that_a_worker_and_its_supervisor_need(factory, store):
    (id,) = put(store, "mail", priority=3, headers='{"a":1}')
    lease = take_one(store)
    assert lease._asdict() == {
        "id": id,
        "token": 1,
        "handler": "mail",
        "queue": "default",
        "payload": "{}",
        "headers": '{"a":1}',
        "retries": 0,
        "priority": 3,
        "tier": 0,
        "due_at": factory.clock.microseconds,
        "created_at": factory.clock.microseconds,
        "policy": POLICY,
        "expired_count": 0,
    }
    assert lease.attempt == 1
    assert state_of(store, id) == "in_flight"
    assert store.held() == [(id, 1)]
    assert store.leases([id, 999]) == [lease]


def test_no_job_is_claimed_twice(factory, store):
    other = factory.joined("two")
    put(store, *"abc")
    assert len(take(store, 2)) == 2
    assert len(take(other, 2)) == 1
    assert take(store) == take(other) == []


def test_jobs_of_a_tier_are_ordered_by_priority_and_then_age(store):
    low, high, mid, high_too = (put(store, priority=priority)[0] for priority in (1, 9, 5, 9))
    assert [lease.id for lease in take(store)] == [high, high_too, mid, low]


def test_each_queue_has_a_claim_request_of_its_own(store):
    (a,) = put(store, queue="a")
    b, _ = put(store, "x", "y", queue="b")
    takes = [ClaimRequest(queue, 1, 1, 1, 100) for queue in ("b", "a", "empty")]
    assert [lease.id for lease in store.claim(takes, TTL, resolve)] == [b, a]


def test_a_claim_is_ordered_as_its_request_demands(factory, store):
    retries = make_retries(factory, store, *"abcd")
    fresh = put(store, *"ef")
    (urgent,) = put(store, "g", priority=100)
    got = [lease.id for lease in take(store, 6, retries_first=2, max_retries_claimed=3)]
    assert got == [urgent, retries[0], retries[1], *fresh, retries[2]]
    assert [lease.id for lease in take(store)] == [retries[3]]


def test_a_claim_has_no_more_retries_than_its_request_allows(factory, store):
    retries = make_retries(factory, store, *"abc")
    assert take(store, 10, retries_first=10, max_retries_claimed=0) == []
    assert [lease.id for lease in take(store, 10, retries_first=10, max_retries_claimed=1)] == retries[:1]


def test_jobs_for_which_a_claim_has_no_room_are_claimed_next(factory, store):
    """Also if somebody has looked at them meanwhile."""
    retries, fresh = make_retries(factory, store, *"abc"), put(store, *"de")
    assert [lease.id for lease in take(store, 2, retries_first=1)] == [retries[0], fresh[0]]
    store.oldest_ready(10)
    assert [lease.id for lease in take(store, 2, retries_first=1)] == [retries[1], fresh[1]]
    assert [lease.id for lease in take(store)] == retries[2:]


def test_urgent_jobs_alone_can_fill_a_claim(factory, store):
    make_retries(factory, store, "a")
    urgent = put(store, *"bcd", priority=100)
    assert [lease.id for lease in take(store, 2)] == urgent[:2]


def test_an_urgent_retry_is_a_retry(factory, store):
    (retry,) = make_retries(factory, store, "a", priority=500)
    (fresh,) = put(store)
    assert [lease.id for lease in take(store, 10, retries_first=0)] == [fresh, retry]


def test_retries_are_ordered_by_due_time(factory, store):
    first, second = make_retries(factory, store, "a", "b")
    leases = {lease.id: lease for lease in take(store)}
    store.settle([again(leases[first], delay=9.0), again(leases[second], delay=4.0)])
    factory.clock.step(10)
    promote(store, 10)
    assert [lease.id for lease in take(store)] == [second, first]


def test_a_token_grows_at_every_claim(factory, store):
    put(store)
    for claims in range(3):
        lease = take_one(store)
        assert lease.token == factory.first_token + claims
        store.settle([release(lease)])


def test_a_released_job_goes_back_to_its_place(store):
    first, second = put(store, "a", "b")
    store.settle([release(take_one(store))])
    assert [lease.id for lease in take(store)] == [first, second]


def test_a_redriven_job_goes_behind_all_that_wait(store):
    (dead,) = make_dead(store)
    (waiting,) = put(store)
    store.redrive([dead], force=True)
    (later,) = put(store)
    assert [lease.id for lease in take(store)] == [waiting, dead, later]


def test_no_job_of_a_paused_queue_is_claimed(factory, store):
    """Neither fresh jobs nor retries, whether urgent or not."""
    make_retries(factory, store)
    put(store), put(store, priority=9), put(store, priority=200)
    store.pause("default", True)
    for first in (0, 10):
        assert take(store, retries_first=first) == take(store, retries_first=0, max_retries_claimed=0) == []
    assert store.paused() == {"default"}
    store.pause("default", False)
    assert len(take(store)) == 4


def test_the_policy_is_resolved_by_handler_and_queue(store):
    put(store, "a", "b")
    put(store, "a", queue="other")

    def by_name(handler: str, queue: str) -> Policy:
        return Policy(max_retries=len(handler + queue))

    takes = [ClaimRequest(queue, 10, 0, 0, 100) for queue in ("default", "other")]
    assert [lease.policy.max_retries for lease in store.claim(takes, TTL, by_name)] == [8, 8, 6]


def test_reloaded_settings_hold_from_the_next_claim(store):
    put(store, "a", "a")
    assert take_one(store).policy == POLICY
    (lease,) = store.claim([ClaimRequest("default", 1, 0, 0, 100)], TTL, lambda handler, queue: Policy(max_retries=9))
    assert lease.policy.max_retries == 9
    assert store.leases([lease.id])[0].policy.max_retries == 9


def test_counts_follow_a_job_through_its_life(factory, store):
    put(store, *"abc")
    assert waiting(store) == {"default": Waiting(3, 0)}
    one, *_ = take(store, 2)
    assert waiting(store) == {"default": Waiting(1, 0)}
    store.settle([again(one)])
    factory.clock.step(10)
    promote(store, 10)
    assert waiting(store) == {"default": Waiting(1, 1)}


def test_jobs_that_were_released_without_a_retry_are_made_due_by_handler(factory, store):
    missing, later, retry, other = (*put(store, "mail", "mail", "mail"), *put(store, "pdf"))
    leases = {lease.id: lease for lease in take(store)}
    store.settle([release(leases[id], delay) for id, delay in ((missing, 30.0), (later, 90.0), (other, 30.0))])
    store.settle([again(leases[retry], 20.0)])
    delayed = put(store, "mail", delay=20.0)
    assert store.make_due({"mail"}, 60.0, 10) == 1
    store.look(None, 10)
    assert state_of(store, missing) == "ready"
    assert {state_of(store, id) for id in (later, retry, other, *delayed)} == {"scheduled"}
    assert store.make_due({"mail", "pdf"}, 100.0, 1) == 1
    factory.check()
