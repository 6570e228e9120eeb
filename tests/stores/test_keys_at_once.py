"""Several programs enqueue, run and cancel jobs of the same keys at once: no two of a key run at a time, and none is left waiting."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

from supervisor.jobs import JobState
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow
from tests.stores.at_once import all_at_once, beside, insisting
from tests.stores.factories import IN_SQL, ON_POSTGRESQL, dead, put, states, success, take, take_one

KEYS = ("a", "b", "c")
JOBS = 120


def row(key, on_failure="pass"):
    return EnqueueRow("mail", "{}", extras=Extras(key=key, on_failure=on_failure))


@ON_POSTGRESQL
def test_an_enqueue_waits_for_another_of_its_key_that_is_not_committed(factory, store):
    other, ids = factory.joined("two"), []
    with store.transaction():
        ids += store.enqueue([row("a")])
        thread = beside(factory, lambda: ids.extend(other.enqueue([row("a")])))
    thread.join()
    assert states(store, ids) == ["ready", "blocked"]


@ON_POSTGRESQL
def test_an_enqueue_at_the_end_of_the_holder_is_not_left_waiting(factory, store):
    other, ids = factory.joined("two"), store.enqueue([row("a")])
    lease = take_one(store)
    with store.transaction():
        store.settle([success(lease)])
        thread = beside(factory, lambda: ids.extend(other.enqueue([row("a")])))
    thread.join()
    assert states(store, ids) == ["succeeded", "ready"]


@ON_POSTGRESQL
def test_a_waiting_job_that_is_cancelled_as_the_holder_ends_does_not_get_the_key(factory, store):
    other = factory.joined("two")
    ids = store.enqueue([row("a"), row("a"), row("a")])
    lease = take_one(store)
    with other.transaction():
        other.cancel([ids[1]])
        thread = beside(factory, lambda: store.settle([success(lease)]))
    thread.join()
    assert states(store, ids) == ["succeeded", "cancelled", "ready"]


def keys_in_flight(store):
    """Count the jobs that are in flight by key, as one query finds them."""
    jobs = store.list_jobs(state=JobState.IN_FLIGHT, brief=True, limit=JOBS)
    return Counter(job["key"] for job in jobs if job["state"] == "in_flight" and job["key"] is not None)


@IN_SQL
def test_programs_that_use_the_same_keys_at_once_leave_no_job_behind(factory, store):
    wrong = []
    stores = [factory.joined(f"owner {n}") for n in range(4)]

    def use(own, choice):
        mine = []
        for _ in range(JOBS):
            mine += insisting(own.enqueue, [row(choice.choice(KEYS)) for _ in range(choice.randint(1, 3))])
            if choice.random() < 0.1:
                insisting(own.cancel, [choice.choice(mine)], only=None) if choice.random() < 0.5 else put(own)
            run_some(own, choice)

    def run_some(own, choice):
        leases = insisting(take, own, choice.randint(1, 3))
        wrong.extend(key for key, n in keys_in_flight(own).items() if n > 1)
        insisting(own.settle, [(success if choice.random() < 0.8 else dead)(lease) for lease in leases])

    all_at_once(*(partial(use, own, random.Random(n)) for n, own in enumerate(stores)))
    while leases := take(store, 100):
        store.settle([success(lease) for lease in leases])
    assert store.remaining(None, None).keys() <= {"dead_letters", "dead_letters_for_other_sinks"}
    assert wrong == []
    assert store.repair() == ""
