"""Several programs enqueue, run and cancel jobs of the same keys at once: no two of a key run at a time, and none is left waiting."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from functools import partial

import psycopg
import pytest

from supervisor.jobs import JobState
from supervisor.stores.extras import Extras
from supervisor.stores.postgres.connection import packed
from supervisor.stores.postgres.enqueue import values_of
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.records import EnqueueRow
from supervisor.stores.waiting import waiting_because
from tests.stores.at_once import all_at_once, beside, insisting
from tests.stores.factories import IN_SQL, ON_POSTGRESQL, dead, put, states, success, take, take_one

KEYS = ("a", "b", "c")
JOBS = 120


def row(key, on_failure="pass", **options):
    return EnqueueRow("mail", "{}", extras=Extras(key=key, on_failure=on_failure), **options)


def reason(store, id):
    return waiting_because(store.get(id), store.stats())


@pytest.fixture
def patient(factory, store):
    """However slow the machine is, the end of a job waits for the rows of its keys."""
    if isinstance(store, PostgresStore):
        factory.sql("alter function {s}.lock_keys(text[]) set lock_timeout = '30s'")


@pytest.fixture
def program(factory, store):
    """Another program, with a function that enqueues in its open transaction."""
    with closing(psycopg.connect(factory.server.url)) as connection:

        def enqueue(*keys):
            batch = packed([values_of(row(key)) for key in keys])
            ((ids,),) = connection.execute(f'select "{factory.schema}".put(%s)', [batch]).fetchall()
            return ids

        enqueue.end = lambda how: getattr(connection, how)()
        yield enqueue


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
def test_the_end_of_the_holder_waits_for_an_enqueue_that_is_not_committed(factory, store, patient):
    other, ids = factory.joined("two"), store.enqueue([row("a")])
    lease = take_one(store)
    with other.transaction():
        ids += other.enqueue([row("a")])
        thread = beside(factory, store.settle, [success(lease)])
    thread.join()
    assert states(store, ids) == ["succeeded", "ready"]


@ON_POSTGRESQL
def test_a_waiting_job_that_is_cancelled_as_the_holder_ends_does_not_get_the_key(factory, store, patient):
    other = factory.joined("two")
    ids = store.enqueue([row("a"), row("a"), row("a")])
    lease = take_one(store)
    with other.transaction():
        other.cancel([ids[1]])
        thread = beside(factory, lambda: store.settle([success(lease)]))
    thread.join()
    assert states(store, ids) == ["succeeded", "cancelled", "ready"]


@ON_POSTGRESQL
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_look_leaves_out_jobs_whose_keys_a_program_has_locked(factory, store, program, ends):
    plain, mine, other, last = store.enqueue(
        [EnqueueRow("mail", "{}", delay=5.0), *[row(key, delay=5.0) for key in ("a", "b", "a")]]
    )
    (its,) = program("a")
    factory.clock.step(5)
    store.look(None, 100)
    assert states(store, [plain, mine, other, last]) == ["ready", "scheduled", "ready", "scheduled"]
    assert [lease.id for lease in take(store)] == [plain, other]
    factory.check()
    program.end(ends)
    factory.clock.step(1)
    store.look(None, 100)
    if ends == "rollback":
        assert states(store, [mine, last]) == ["ready", "blocked"]
    else:
        assert states(store, [its, mine, last]) == ["ready", "blocked", "blocked"]
    factory.check()


@ON_POSTGRESQL
def test_the_end_of_a_job_does_not_wait_for_a_program_that_has_locked_its_key(factory, store, program):
    holder, waiting, plain = store.enqueue([row("a"), row("a"), EnqueueRow("mail", "{}")])
    leases = take(store)
    (its,) = program("a")
    assert store.settle([success(lease) for lease in leases]) == []
    assert states(store, [holder, waiting, plain]) == ["succeeded", "blocked", "succeeded"]
    assert reason(store, waiting) == (
        f"job {holder}, which was before it in the order of its key a, has ended, and another session has locked the key, or has changed "
        "that job by SQL of its own: this job goes on within ten seconds after the transaction of that session has ended"
    )
    assert store.repair() == "", "it does not wait either"
    program.end("commit")
    assert store.repair() == "jobs in default go on that waited for jobs that have ended", "nobody has changed a row"
    assert states(store, [waiting, its]) == ["ready", "blocked"]
    factory.check()


@ON_POSTGRESQL
@pytest.mark.parametrize("on_failure", ["pass", "hold"])
def test_why_a_job_waits_whose_key_is_locked_as_the_one_before_it_fails_and_is_deleted(
    factory, store, program, on_failure
):
    holder, waiting = store.enqueue([row("a", on_failure), row("a")])
    program("a")
    store.settle([dead(take_one(store))])
    its = f"job {holder}, which "
    failed = {"pass": "was before it in the order of its key a, has ended", "hold": "has failed, holds its key a"}
    assert reason(store, waiting).startswith(its + failed[on_failure])
    store.delete([holder], force=True)
    assert store.get(waiting)["key_held_by"] == {"id": holder, "state": None, "on_failure": None}
    assert reason(store, waiting).startswith(f"{its}was before it in the order of its key a, was deleted, and another ")
    program.end("rollback")
    store.repair()
    assert states(store, [waiting]) == ["ready"]


@ON_POSTGRESQL
def test_a_child_whose_key_a_program_has_locked_goes_on_later(factory, store, program):
    (parent,) = put(store, "mail")
    (child,) = store.enqueue([EnqueueRow("mail", "{}", extras=Extras(key="a", after=(parent,)))])
    program("a")
    store.settle([success(take_one(store))])
    assert states(store, [parent, child]) == ["succeeded", "scheduled"]
    assert store.newly_ready() == {"default"}, "so that somebody looks when it is due"
    program.end("rollback")
    factory.clock.step(1)
    store.look(None, 100)
    assert take_one(store).id == child
    factory.check()


def keys_in_flight(store):
    """Count the jobs that are in flight by key, as one query finds them."""
    jobs = store.list_jobs(state=JobState.IN_FLIGHT, brief=True, limit=JOBS)
    return Counter(job["key"] for job in jobs if job["state"] == "in_flight" and job["key"] is not None)


@IN_SQL
def test_programs_that_use_the_same_keys_at_once_leave_no_job_behind(factory, store, patient):
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
