"""Several programs enqueue jobs of the same groups at once, some in long transactions: nobody waits, and no group gets more for it."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.stores.extras import Extras
from supervisor.stores.postgres.claim_cursor import MIN_PASSED
from supervisor.stores.postgres.connection import packed
from supervisor.stores.postgres.enqueue import values_of
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import ON_POSTGRESQL, success, take
from tests.system.command import wait_for

pytestmark = ON_POSTGRESQL


def rows(group, n=1):
    return [EnqueueRow("mail", "{}", extras=Extras(group=group)) for _ in range(n)]


def order(store, limit):
    return "".join(store.get(lease.id)["group"] for lease in take(store, limit))


@pytest.fixture
def program(factory, store):
    """Another program, with a function that enqueues in its open transaction."""
    with closing(psycopg.connect(factory.server.url)) as connection:

        def enqueue(group, n):
            batch = packed([values_of(row) for row in rows(group, n)])
            connection.execute(f'select "{factory.schema}".put(%s)', [batch])

        enqueue.commit = connection.commit
        yield enqueue


@pytest.fixture
def impatient(factory, store):
    """The store gives up if it waits for a lock of the program, which is never released."""
    store.connection.run("set lock_timeout = '2s'")
    return store


def test_a_long_transaction_holds_up_neither_enqueues_nor_due_jobs_nor_pruning(factory, impatient, program):
    store = impatient
    store.enqueue(rows("a", 5))
    store.enqueue([row._replace(delay=5.0) for row in rows("a", 5)])
    program("a", 5)
    store.enqueue(rows("a", 5))
    factory.clock.step(5)
    store.look(None, 100)
    store.prune(RetentionSettings(), 100)
    store.redrive([], force=True)
    store.enqueue(rows("b", 3))
    assert order(store, 30).count("a") == 15
    program.commit()
    assert order(store, 30) == "a" * 5


def test_what_transactions_use_at_the_same_time_adds_up(factory, store, program):
    store.enqueue(rows("a", 1))
    program("a", 10)
    store.enqueue(rows("a", 10))
    program.commit()
    store.enqueue(rows("a", 1))
    store.enqueue(rows("b", 30))
    found = order(store, 100)
    assert found[: found.rindex("a")].count("b") >= 20, "the last job of a is behind the 21 before it"


def test_single_jobs_that_are_enqueued_beside_a_long_transaction_take_one_turn_each(factory, store, program):
    store.enqueue(rows("b", 30))
    program("a", 1)
    for _ in range(10):
        store.enqueue(rows("a"))
    assert order(store, 20) == "ba" * 10


def test_the_rows_of_a_group_become_one_again(factory, store, program):
    store.enqueue(rows("b", 100))
    program("a", 2)
    store.enqueue(rows("a", 2))
    program.commit()
    assert positions(factory) == 2
    store.enqueue(rows("a", 2))
    assert positions(factory) == 1
    store.enqueue(rows("a", 1))
    assert order(store, 12) == "baa" * 2 + "bb" + "ba" * 2, "what it has had too much of comes off later"


def positions(factory):
    return factory.sql("select count(*) from {s}.job_groups where name = 'a'").fetchone()[0]


def test_a_program_that_rolls_back_takes_no_turn(factory, store, program):
    store.enqueue(rows("a", 1))
    with pytest.raises(RuntimeError), store.transaction():
        store.enqueue(rows("b", 50))
        raise RuntimeError
    store.enqueue(rows("b", 2))
    store.enqueue(rows("a", 2))
    assert order(store, 10) == "abbaa"


def test_a_job_that_is_committed_late_is_found_though_claims_have_passed_its_turn(store, program):
    """See `claim_cursor`: a claim looks at the whole queue every two seconds or more often."""
    store.enqueue(rows("a", 2 * MIN_PASSED))
    program("b", 1)
    while (taken := take(store, 500)) and taken[-1].id < 1.5 * MIN_PASSED:
        store.settle([success(lease) for lease in taken])
    program.commit()

    def found():
        leases = take(store, 1)
        store.settle([success(lease) for lease in leases])
        assert [store.get(lease.id)["group"] for lease in leases] == ["b"]

    wait_for(found)
