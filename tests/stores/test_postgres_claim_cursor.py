"""Entries of claimed jobs stay in the index, dead, until a vacuum, which an old transaction may prevent for hours."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from supervisor.stores.postgres.claim import CLAIM, CLAIM_FRESH
from supervisor.stores.postgres.claim_cursor import MIN_PASSED, WHOLE
from supervisor.stores.postgres.limits import PostgresLimits
from supervisor.stores.records import ClaimRequest, EnqueueRow
from tests.stores.factories import ON_POSTGRESQL, TTL, make_retries, put, release, resolve, success, take

pytestmark = ON_POSTGRESQL

MANY = MIN_PASSED + 1000
CLAIMED = ("default", 10, 1, 1, "{}", 1_000_000, 0)
RULE = (5, 10, 10, 100)


@pytest.fixture
def old_reader(factory, store):
    """A transaction that has seen the jobs as they were, and so keeps every version of them."""
    put(store, *["mail"] * 10 * MANY)
    with psycopg.connect(factory.server.url) as reader:
        reader.execute("begin isolation level repeatable read")
        reader.execute(f'select count(*) from "{factory.schema}".jobs')
        yield reader


def blocks(store, statement, *parameters):
    with pytest.raises(ZeroDivisionError), store.transaction():
        explain = f"explain (analyze, buffers, format json) {statement}"
        ((explained,),) = store.connection.rows(explain, *parameters)
        raise ZeroDivisionError
    return explained[0]["Plan"]["Shared Hit Blocks"] + explained[0]["Plan"]["Shared Read Blocks"]


def test_a_claim_does_not_step_through_jobs_that_were_claimed_before(old_reader, store):
    while leases := take(store, 500):
        store.settle([success(lease) for lease in leases])
    put(store, *["mail"] * 5)
    position = store.claim_cursors._cursors["default"].position
    assert 10 * blocks(store, CLAIM, *CLAIMED, *position, *RULE) < blocks(store, CLAIM, *CLAIMED, *WHOLE, *RULE)


def test_nor_does_one_that_takes_jobs_of_many_queues(factory, store):
    queues = [f"queue {number}" for number in range(10)]
    store.enqueue([EnqueueRow("mail", "{}", queue) for _ in range(3 * MANY // 10) for queue in queues])
    with psycopg.connect(factory.server.url) as reader:
        reader.execute("begin isolation level repeatable read")
        reader.execute(f'select count(*) from "{factory.schema}".jobs')
        requests = [ClaimRequest(queue, 50, 0, 0, 100) for queue in queues]
        while leases := store.claim(requests, TTL, resolve):
            store.settle([success(lease) for lease in leases])
        store.enqueue([EnqueueRow("mail", "{}", queue) for queue in queues])
        positions = [store.claim_cursors._cursors[queue].position for queue in queues]
        claim = (queues, [1] * 10, 1, 1, "{}", 1_000_000, 0)
        onward, whole = (
            blocks(store, CLAIM_FRESH, *claim, *map(list, zip(*its, strict=True))) for its in (positions, [WHOLE] * 10)
        )
    assert 2 * onward < whole


def claim_many_and_release_the_first(store):
    """The cursor moves at the last claim."""
    leases = [*take(store, MANY - 1), *take(store, 1)]
    store.settle([release(leases[0]), *(success(lease) for lease in leases[1:])])
    return leases[0].id


def keep(store):
    """Keep the cursor valid for the rest of the test."""
    store.claim_cursors.looked_at_whole("default", 0.0, float("inf"))


def test_a_job_that_is_in_its_old_place_again_is_found_at_the_next_look_at_the_whole_queue(store):
    put(store, *["mail"] * MANY)
    first = claim_many_and_release_the_first(store)
    waiting = put(store, *"abcd")
    keep(store)
    store.look(None, 10)
    assert [lease.id for lease in take(store, 2)] == waiting[:2]
    store.claim_cursors.reset()
    assert [lease.id for lease in take(store, 2)] == [first, waiting[2]]


@pytest.mark.parametrize("retries", [0, 10])
def test_a_job_that_is_in_its_old_place_again_is_found_at_once_if_too_few_others_wait(store, retries):
    put(store, *["mail"] * MANY)
    first = claim_many_and_release_the_first(store)
    (waiting,) = put(store)
    keep(store)
    store.look(None, 10)
    assert [lease.id for lease in take(store, 10, max_retries_claimed=retries)] == [first, waiting]


def test_other_priorities_are_claimed_in_their_order_and_retries_fill_up(factory, store):
    retries = make_retries(factory, store, "a", "b")
    put(store, *["mail"] * MANY, priority=5)
    take(store, MANY, retries_first=0, max_retries_claimed=0)
    low, same, high, urgent = (put(store, priority=priority)[0] for priority in (1, 5, 9, 100))
    keep(store)
    store.look(None, 10)
    store.pause("default", True)
    assert take(store, 10) == take(store, 10, retries_first=0, max_retries_claimed=0) == []
    store.pause("default", False)
    assert [lease.id for lease in take(store, 5, retries_first=0)] == [urgent, high, same, low, retries[0]]
    assert [lease.id for lease in take(store, 5)] == retries[1:]


def test_after_a_rollback_a_claim_looks_at_the_whole_queue(store):
    put(store, *["mail"] * MANY)
    with pytest.raises(ZeroDivisionError), store.transaction():
        take(store, MANY - 5)
        raise ZeroDivisionError
    assert [lease.id for lease in take(store, 2)] == [1, 2]


@pytest.mark.parametrize(("claim_bytes", "lost"), [(1, False), (16_000_000, True)])
def test_jobs_that_another_supervisor_has_locked_and_left_are_not_passed_over(factory, store, claim_bytes, lost):
    """Its claim is limited to the first of them, which is large; or it is lost before its commit."""
    ids = put(store, *["mail"] * 2 * MANY)
    factory.limits = PostgresLimits(claim_bytes=claim_bytes)
    other = factory.joined("other")
    with suppress(ZeroDivisionError), other.transaction():
        assert len(take(other, 10)) == (10 if lost else 1)
        take(store, MANY), take(store, 1)
        if lost:
            raise ZeroDivisionError
    keep(store)
    store.look(None, 10)
    left = ids if lost else ids[1:]
    assert [lease.id for lease in take(store, 5)] == left[:5]
