from __future__ import annotations

import pytest

from supervisor.errors import StoreError
from supervisor.jobs import Cause, JobState, Kind, Outcome
from tests.stores.factories import POLICY, TTL, again, failure, promote, put, release, state_of, success, take, take_one


def released(expired_leases):
    return Outcome(expired_leases.lease, Kind.RELEASED, state=JobState.READY, seen=expired_leases.deadline)


def light(lease):
    return lease._replace(payload="", headers=None)


def expired(expired_leases):
    return Outcome(
        expired_leases.lease, Kind.FAILED, failure=failure(expired_leases.lease, Cause.LEASE_EXPIRED), seen=expired_leases.deadline,
        state=JobState.SCHEDULED, counted=True, delay=1.0,
    )  # fmt: skip


def test_an_extended_lease_has_a_new_deadline(factory, store):
    put(store)
    lease = take_one(store)
    factory.clock.step(20)
    assert store.extend([lease], TTL, []) == []
    other = factory.joined("two")
    factory.clock.step(29)
    assert other.expired_leases(10) == []
    factory.clock.step(1)
    (expired_leases,) = other.expired_leases(10)
    assert expired_leases.deadline == factory.clock.microseconds


def test_a_lease_that_is_not_the_owners_any_more_is_stale_when_extended(store):
    put(store, "a", "b")
    kept, lost = take(store)
    store.cancel([lost.id])
    assert store.extend([kept, lost], TTL, [lost]) == [lost.id]
    store.settle([success(kept)])
    assert store.extend([kept], TTL, []) == [kept.id]


def test_an_old_lease_is_stale_beside_the_new_one_of_its_job(store):
    put(store)
    old = take_one(store)
    store.settle([release(old)])
    new = take_one(store)
    assert store.extend([old, new], TTL, []) == store.extend([new], TTL, [new, old]) == [new.id]
    assert store.extend([new], TTL, [new]) == []


def test_start_marks_go_with_an_extend_or_alone(factory, store):
    put(store, "a", "b")
    a, b = take(store)
    factory.clock.step(1)
    assert store.extend([], TTL, [a]) == []
    assert store.get(a.id)["started_at"] == "2023-11-14T22:13:21.000000Z"
    factory.clock.step(1)
    assert store.extend([a, b], TTL, [a, b]) == []
    assert store.get(a.id)["started_at"] == "2023-11-14T22:13:21.000000Z"
    assert store.get(b.id)["started_at"] == "2023-11-14T22:13:22.000000Z"


def test_a_claim_clears_the_start_mark(factory, store):
    (id,) = put(store)
    lease = take_one(store)
    store.extend([], TTL, [lease])
    store.settle([again(lease, delay=1.0)])
    factory.clock.step(1)
    promote(store, 1)
    take_one(store)
    assert store.get(id)["started_at"] is None


def test_no_lease_expires_before_its_deadline(factory, store):
    put(store)
    take_one(store)
    other = factory.joined("two")
    factory.clock.step(TTL - 0.001)
    assert other.expired_leases(10) == []


def test_an_expired_lease_holds_all_that_recovery_needs(factory, store):
    put(store, "a", "b", max_retries=7)
    a, b = take(store)
    store.extend([], TTL, [b])
    deadline = factory.clock.microseconds + round(TTL * 1e6)
    factory.clock.step(TTL)
    found = {expired_leases.lease.id: expired_leases for expired_leases in factory.joined("two").expired_leases(10)}
    assert found[a.id] == (light(a), deadline, False, "one", False)
    assert found[b.id] == (light(b), deadline, True, "one", False)
    assert a.policy == POLICY._replace(max_retries=7)


def test_an_owner_never_sees_its_own_leases_expire(factory, store):
    put(store)
    take_one(store)
    factory.clock.step(10 * TTL)
    assert store.expired_leases(10) == []


def test_an_owner_never_forgets_itself_however_late_it_is(factory, store):
    factory.clock.step(10 * 86_400)
    assert store.expired_leases(10) == []
    put(store)
    take_one(store)
    factory.clock.step(TTL)
    assert [found.owner for found in factory.joined("two").expired_leases(10)] == ["one"]


def test_expired_leases_go_on_behind_the_last_one_given(factory, store):
    """Leases of owners that are gone come first, then the longest expired, in parts of any size."""
    late, early = put(store), put(store, *"ab")
    other, gone, observer = factory.joined("two"), factory.joined("gone"), factory.joined("three")
    assert [lease.id for lease in take(store, 1)] == late
    take(other, 1)
    factory.clock.step(1)
    store.extend([light(lease) for lease in store.leases(late)], TTL, [])
    take(store, 1)
    left = put(gone, *"abc")
    take(gone, 3)
    gone.leave()
    factory.clock.step(TTL)
    order = [*left, early[0], late[0], early[1]]
    assert [expired_leases.lease.id for expired_leases in observer.expired_leases(10)] == order
    for size in range(1, 7):
        found = observer.expired_leases(size)
        while part := observer.expired_leases(size, found[-1]):
            assert len(part) <= size
            found += part
        assert [expired_leases.lease.id for expired_leases in found] == order


def test_no_lease_expires_by_a_clock_that_steps_back(factory, store):
    put(store)
    take_one(store)
    factory.clock.step(-3600)
    assert factory.joined("two").expired_leases(10) == []


def test_leases_of_an_owner_that_left_expire_at_once(factory, store):
    (id,) = put(store)
    take_one(store)
    store.leave()
    other = factory.joined("two")
    (expired_leases,) = other.expired_leases(10)
    assert (expired_leases.lease.id, expired_leases.owner, expired_leases.owner_gone) == (id, "one", True)
    assert [row["owner"] for row in other.stats()["supervisors"]] == ["one", "two"]
    assert other.recover([released(expired_leases)]) == []
    assert [row["owner"] for row in other.stats()["supervisors"]] == ["two"]


@pytest.mark.parametrize("factory", ["sqlite", "postgresql"], indirect=True)
def test_the_row_of_an_owner_that_left_with_leases_goes_once_they_are_recovered(factory, store):
    put(store)
    take_one(store)
    store.leave()
    other = factory.joined("two")
    assert other.recover([released(expired_lease) for expired_lease in other.expired_leases(10)]) == []
    assert other.expired_leases(10) == []
    assert [owner for (owner,) in factory.sql("select owner from {s}.supervisors")] == ["two"]


def test_a_release_by_recovery_adds_to_the_expired_count_and_counts_no_retry(factory, store):
    (id,) = put(store)
    other = factory.joined("two")
    for expired_count, started in ((0, False), (1, True), (3, False), (3, True), (5, False)):
        lease = take_one(store)
        store.extend([], TTL, [lease] if started else [])
        factory.clock.step(TTL)
        (expired_leases,) = other.expired_leases(10)
        assert expired_leases.lease.expired_count == expired_count
        assert other.recover([released(expired_leases)]) == []
        assert state_of(store, id) == "ready"
    job = store.get(id)
    assert (job["retries"], job["errors"]) == (0, [])


def test_a_suspect_that_waits_for_its_turn_is_not_made_due_with_the_jobs_of_its_handler(factory, store):
    (id,) = put(store)
    other = factory.joined("two")
    store.extend([], TTL, [take_one(store)])
    factory.clock.step(TTL)
    other.recover([released(expired_lease) for expired_lease in other.expired_leases(10)])
    lease = take_one(store)
    store.settle([release(lease, 5.0)])
    assert store.make_due({lease.handler}, 60.0, 10) == 0
    assert state_of(store, id) == "scheduled"


def test_an_expired_lease_that_counts_is_a_failed_attempt(factory, store):
    (id,) = put(store)
    take_one(store)
    factory.clock.step(TTL)
    other = factory.joined("two")
    assert other.recover([expired(expired_leases) for expired_leases in other.expired_leases(10)]) == []
    job = store.get(id)
    assert (job["state"], job["retries"], job["errors"][0]["cause"]) == ("scheduled", 1, "lease_expired")


@pytest.mark.parametrize(("cause", "expired_count"), [(Cause.LEASE_EXPIRED, 1), (Cause.EXCEPTION, 0)])
def test_the_expired_count_is_reset_by_any_outcome_but_another_expired_lease(factory, store, cause, expired_count):
    put(store)
    other = factory.joined("two")
    take_one(store)
    factory.clock.step(TTL)
    other.recover([released(expired_leases) for expired_leases in other.expired_leases(10)])
    lease = take_one(store)
    store.settle([again(lease, delay=0.0)._replace(failure=failure(lease, cause))])
    promote(store, 1)
    take_one(store)
    factory.clock.step(TTL)
    assert [expired_leases.lease.expired_count for expired_leases in other.expired_leases(10)] == [expired_count]


def test_recovery_must_name_the_deadline_it_saw(store):
    put(store)
    with pytest.raises(StoreError, match="deadline"):
        store.recover([again(take_one(store))])


def test_recovery_leaves_a_lease_alone_that_was_extended_meanwhile(factory, store):
    put(store)
    lease = take_one(store)
    factory.clock.step(TTL)
    other = factory.joined("two")
    (expired_leases,) = other.expired_leases(10)
    store.extend([lease], TTL, [])
    assert other.recover([released(expired_leases)]) == [lease.id]
    assert store.settle([success(lease)]) == []


def test_recovery_leaves_a_job_alone_that_was_settled_meanwhile(factory, store):
    put(store)
    lease = take_one(store)
    factory.clock.step(TTL)
    other = factory.joined("two")
    (expired_leases,) = other.expired_leases(10)
    store.settle([success(lease)])
    before = store.get(lease.id)
    assert other.recover([expired(expired_leases)]) == [lease.id]
    assert store.get(lease.id) == before


def test_two_that_recover_one_lease_do_it_once(factory, store):
    (id,) = put(store)
    take_one(store)
    factory.clock.step(TTL)
    two, three = factory.joined("two"), factory.joined("three")
    (seen_by_two,), (seen_by_three,) = two.expired_leases(10), three.expired_leases(10)
    assert two.recover([expired(seen_by_two)]) == []
    assert three.recover([expired(seen_by_three)]) == [id]
    assert len(store.get(id)["errors"]) == 1


def test_late_outcomes_of_a_recovered_lease_are_stale(factory, store):
    """Every outcome of a supervisor that has lost the lease is refused, before and after the next claim."""
    (id,) = put(store)
    lease = take_one(store)
    factory.clock.step(TTL)
    other = factory.joined("two")
    other.recover([released(expired_leases) for expired_leases in other.expired_leases(10)])
    assert store.settle([success(lease)]) == [id]
    assert store.extend([lease], TTL, [lease]) == [id]
    theirs = take_one(other)
    for outcome in (success(lease), again(lease)):
        assert store.settle([outcome]) == [id]
    assert other.settle([success(theirs, '"theirs"')]) == []
    assert store.settle([success(lease, '"ours"')]) == [id]
    assert store.get(id)["result"] == "theirs"


def test_an_owner_holds_only_its_own_leases(factory, store):
    put(store, "a", "b")
    take_one(store)
    other = factory.joined("two")
    theirs = take_one(other)
    assert other.held() == [(theirs.id, 1)]
    assert other.leases([1, 2, 3]) == [theirs]


def test_a_release_of_a_job_that_was_not_started_keeps_its_expired_count(factory, store):
    """Otherwise a job that kills the supervisor that starts it, and is released by others, would never end."""
    put(store)
    other = factory.joined("two")
    take_one(store)
    factory.clock.step(TTL)
    other.recover([released(expired_leases) for expired_leases in other.expired_leases(10)])
    lease = take_one(store)
    store.settle([release(lease)])
    take_one(store)
    factory.clock.step(TTL)
    assert [expired_leases.lease.expired_count for expired_leases in other.expired_leases(10)] == [1]
