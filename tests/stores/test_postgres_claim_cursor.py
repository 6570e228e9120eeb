"""What was claimed is dead in the index until a vacuum, which an old transaction may keep from its work for hours."""

from __future__ import annotations

import psycopg
import pytest

from supervisor.stores.postgres.claim import CANDIDATES, CANDIDATES_FROM
from supervisor.stores.postgres.claim_cursor import PASSED_MANY
from tests.stores.factories import ON_POSTGRESQL, put, release, success, take

pytestmark = ON_POSTGRESQL

MANY = PASSED_MANY + 1000
RULE = ("default", 10, 10, 10, 100)


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
        ((explained,),) = store.rows(f"explain (analyze, buffers, format json) {statement}", *parameters)
        raise ZeroDivisionError
    return explained[0]["Plan"]["Shared Hit Blocks"] + explained[0]["Plan"]["Shared Read Blocks"]


def test_a_claim_does_not_step_through_what_was_claimed_before(old_reader, store):
    while leases := take(store, 500):
        store.settle([success(lease) for lease in leases])
    put(store, *["mail"] * 5)
    claim_cursor = store._claim_cursors._claim_cursors["default"]
    beginning = (claim_cursor.priority, claim_cursor.age)
    assert 10 * blocks(store, CANDIDATES_FROM, *RULE, *beginning) < blocks(store, CANDIDATES, *RULE)


def claim_many_and_release_the_first(store):
    leases = take(store, MANY)
    store.settle([release(leases[0]), *(success(lease) for lease in leases[1:])])
    return leases[0].id


def expire(store):
    for claim_cursor in store._claim_cursors._claim_cursors.values():
        claim_cursor.looked_until = 0.0


def keep(store):
    for claim_cursor in store._claim_cursors._claim_cursors.values():
        claim_cursor.looked_until = float("inf")


def test_what_has_come_back_to_its_place_is_found_at_the_next_look_at_the_whole_line(store):
    put(store, *["mail"] * MANY)
    first = claim_many_and_release_the_first(store)
    waiting = put(store, *"abcd")
    keep(store)
    store.look(None, 10)
    assert [lease.id for lease in take(store, 2)] == waiting[:2]
    expire(store)
    assert [lease.id for lease in take(store, 2)] == [first, waiting[2]]


def test_what_has_come_back_is_found_at_once_if_there_is_too_little_else(store):
    put(store, *["mail"] * MANY)
    first = claim_many_and_release_the_first(store)
    (waiting,) = put(store)
    keep(store)
    store.look(None, 10)
    assert [lease.id for lease in take(store, 10)] == [first, waiting]


def test_other_priorities_are_claimed_in_their_order(store):
    put(store, *["mail"] * MANY, priority=5)
    take(store, MANY)
    low, same, high, urgent = (put(store, priority=priority)[0] for priority in (1, 5, 9, 100))
    keep(store)
    store.look(None, 10)
    assert [lease.id for lease in take(store, 10)] == [urgent, high, same, low]


def test_after_a_rollback_the_whole_line_is_looked_at(store):
    put(store, *["mail"] * MANY)
    with pytest.raises(ZeroDivisionError), store.transaction():
        take(store, MANY - 5)
        raise ZeroDivisionError
    assert [lease.id for lease in take(store, 2)] == [1, 2]
