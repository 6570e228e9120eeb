from __future__ import annotations

import pytest

from supervisor.errors import StoreError
from supervisor.jobs import Policy
from supervisor.stores.records import ClaimRequest, Presence
from tests.stores.factories import TTL, again, put, resolve, state_of, success, take, take_one, waiting


def test_a_claim_needs_an_owner(factory):
    store = factory.open()
    put(store)
    with pytest.raises(StoreError, match="join"):
        store.claim([ClaimRequest("default", 1, 1, 1, 100)], TTL, resolve)
    with pytest.raises(StoreError, match="join"):
        store.announce(Presence("running"))


def test_a_notification_wakes_all_other_owners(factory, store):
    other, client = factory.joined("two"), factory.open()
    assert factory.quiet(store)
    client.notify()
    client.notify()
    assert factory.notified(store) and factory.notified(other)
    factory.clear_notifications(store)
    assert factory.quiet(store)
    assert factory.notified(other)


def test_an_enqueue_notifies(factory, store):
    put(factory.open())
    assert factory.notified(store)


def test_a_supervisor_does_not_notify_itself(factory, store):
    store.notify()
    assert factory.quiet(store)


def test_an_owner_with_all_the_notifications_it_can_hold_is_notified_already(factory, store):
    client = factory.open()
    for _ in range(factory.max_notifications + 1):
        client.notify()
    assert factory.notified(store)
    factory.clear_notifications(store)
    assert factory.quiet(store)


def test_an_owner_that_left_has_no_notifications_and_no_row(factory, store):
    other = factory.joined("two")
    store.leave()
    assert store.notification_fd() is None
    other.notify()
    assert [row["owner"] for row in other.stats()["supervisors"]] == ["two"]
    store.leave()


def test_joining_again_after_a_doubtful_answer_is_harmless(store):
    put(store)
    store.join("one", "host", 4711)
    take_one(store)
    assert [row["owner"] for row in store.stats()["supervisors"]] == ["one"]


def test_a_transaction_commits_everything_together(store):
    ids = put(store, *"abc")
    with store.transaction():
        first = take_one(store)
        store.settle([success(first)])
        second = take_one(store)
        store.announce(Presence("running"))
    assert [state_of(store, id) for id in ids] == ["succeeded", "in_flight", "ready"]
    assert store.held() == [(second.id, 1)]


def test_a_transaction_that_fails_leaves_nothing_behind(factory, store):
    ids = put(store, *"abc")
    put(store, delay=1.0)
    lease = take_one(store)
    before, stats = [*store.list_jobs()], store.stats()
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.settle([again(lease)])
        take(store)
        put(store, "d")
        store.cancel([ids[2]])
        store.delete([ids[2]])
        raise ZeroDivisionError
    assert [*store.list_jobs()] == before
    assert store.stats() == stats
    assert store.settle([success(lease)]) == []
    assert [it.id for it in take(store)] == ids[1:]


def test_a_policy_first_seen_in_a_transaction_that_failed_is_written_again(store):
    (id,) = put(store)
    with pytest.raises(ZeroDivisionError), store.transaction():
        take_one(store)
        raise ZeroDivisionError
    assert take_one(store).policy == resolve("mail", "default")
    assert store.get(id)["max_retries"] == 3


def test_new_settings_first_seen_in_a_transaction_that_failed_hold_all_the_same(store):
    def newer(handler: str, queue: str) -> Policy:
        return Policy(max_retries=9)

    put(store, "a", "a")
    take_one(store)
    one = [ClaimRequest("default", 1, 1, 1, 100)]
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.claim(one, TTL, newer)
        raise ZeroDivisionError
    (lease,) = store.claim(one, TTL, newer)
    assert lease.policy.max_retries == 9


def test_a_policy_of_a_transaction_that_failed_is_not_taken_for_anothers(factory, store):
    put(store)
    other = factory.joined("two")
    with pytest.raises(ZeroDivisionError), store.transaction():
        take_one(store)
        raise ZeroDivisionError
    (theirs,) = other.claim([ClaimRequest("default", 1, 1, 1, 100)], TTL, lambda handler, queue: Policy(max_retries=9))
    factory.clock.step(TTL)
    (expired_leases,) = store.expired_leases(10)
    assert expired_leases.lease.policy == theirs.policy


def test_transactions_join_the_open_one(store):
    with store.transaction(), store.transaction():
        put(store)
    assert len([*store.list_jobs()]) == 1


def test_queries_inside_a_transaction_see_its_changes(store):
    with store.transaction():
        (id,) = put(store)
        assert waiting(store)["default"].fresh == 1
        assert store.get(id)["state"] == "ready"
        assert store.remaining(None, None) == {"ready": 1}
        assert store.stats()["queues"][0]["queue_size"] == 1
