"""Several programs enqueue, run and cancel jobs of the same keys at once: no two of a key run at a time, and none is left waiting."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

from supervisor.errors import RowsLocked, StoreContended
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow
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
        thread = threading.Thread(target=lambda: ids.extend(other.enqueue([row("a")])))
        thread.start()
        waits_for_a_lock(factory)
    thread.join()
    assert states(store, ids) == ["ready", "blocked"]


@ON_POSTGRESQL
def test_an_enqueue_at_the_end_of_the_holder_is_not_left_waiting(factory, store):
    other, ids = factory.joined("two"), store.enqueue([row("a")])
    lease = take_one(store)
    with store.transaction():
        store.settle([success(lease)])
        thread = threading.Thread(target=lambda: ids.extend(other.enqueue([row("a")])))
        thread.start()
        waits_for_a_lock(factory)
    thread.join()
    assert states(store, ids) == ["succeeded", "ready"]


@ON_POSTGRESQL
def test_a_waiting_job_that_is_cancelled_as_the_holder_ends_does_not_get_the_key(factory, store):
    other = factory.joined("two")
    ids = store.enqueue([row("a"), row("a"), row("a")])
    lease = take_one(store)
    with other.transaction():
        other.cancel([ids[1]])
        thread = threading.Thread(target=lambda: store.settle([success(lease)]))
        thread.start()
        waits_for_a_lock(factory)
    thread.join()
    assert states(store, ids) == ["succeeded", "cancelled", "ready"]


def waits_for_a_lock(factory):
    query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like %s"
    while not factory.sql(query, f"%{factory.schema}%").fetchone()[0]:
        pass


@IN_SQL
def test_programs_that_use_the_same_keys_at_once_leave_no_job_behind(factory, store):
    running, wrong, lock = defaultdict(int), [], threading.Lock()
    stores = [factory.joined(f"owner {n}") for n in range(4)]
    failures = []

    def use(own, seed):
        try:
            _use(own, random.Random(seed))
        except Exception as error:
            failures.append(error)

    def _use(own, choice):
        mine = []
        for _ in range(JOBS):
            mine += insisting(own.enqueue, [row(choice.choice(KEYS)) for _ in range(choice.randint(1, 3))])
            if choice.random() < 0.1:
                insisting(own.cancel, [choice.choice(mine)], only=None) if choice.random() < 0.5 else put(own)
            run_some(own, choice)

    def run_some(own, choice):
        leases = insisting(take, own, choice.randint(1, 3))
        keys = [own.get(lease.id)["key"] for lease in leases]
        with lock:
            for lease, key in zip(leases, keys, strict=True):
                running[key] += key is not None
                if running[key] > 1 and own.get(lease.id)["state"] == "in_flight":
                    wrong.append((lease.id, key))
        with lock:
            for key in keys:
                running[key] -= key is not None
        insisting(own.settle, [(success if choice.random() < 0.8 else dead)(lease) for lease in leases])

    threads = [threading.Thread(target=use, args=(own, n)) for n, own in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    while leases := take(store, 100):
        store.settle([success(lease) for lease in leases])
    assert store.remaining(None, None).keys() <= {"dead_letters", "dead_letters_for_other_sinks"}
    assert wrong == []
    assert store.repair() == ""


def insisting(call, *arguments, **named):
    """Call again after a deadlock or a lock timeout, as a supervisor does."""
    while True:
        try:
            return call(*arguments, **named)
        except (StoreContended, RowsLocked):
            continue
