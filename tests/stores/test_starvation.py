"""Jobs that can't be claimed keep no other job waiting, however many they are and however high their priority."""

from __future__ import annotations

from supervisor.stores.records import EnqueueRow
from tests.stores.factories import make_retries, promote, put, take, waiting

MANY = 20_000


def test_a_job_does_not_wait_behind_very_many_that_are_due_tomorrow(store):
    store.enqueue([EnqueueRow("mail", "{}", priority=200, delay=86_400.0)] * MANY)
    (id,) = put(store, priority=-5)
    assert promote(store, 1000) == 0
    assert [lease.id for lease in take(store, 1)] == [id]


def test_a_job_does_not_wait_behind_very_many_of_a_paused_queue(store):
    store.enqueue([EnqueueRow("mail", "{}", queue="a", priority=200)] * MANY)
    (id,) = put(store, queue="b", priority=-5)
    store.pause("a", True)
    assert list(waiting(store)) == ["b"]
    assert [lease.id for lease in [*take(store, 1, "a"), *take(store, 1, "b")]] == [id]


def test_a_fresh_job_does_not_wait_behind_many_retries_that_have_had_their_share(factory, store):
    make_retries(factory, store, *["mail"] * 100)
    (id,) = put(store, priority=-5)
    assert [lease.id for lease in take(store, 10, retries_first=0, max_retries_claimed=0)] == [id]
