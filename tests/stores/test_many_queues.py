"""Thousands of queues: a look, and so a claim, costs no more than its jobs."""

from __future__ import annotations

import pytest

from supervisor.engine.shares import share_out
from supervisor.stores.counts import ROWS_OF_A_LOOK
from supervisor.stores.postgres.claim import LOOK
from supervisor.stores.postgres.counts import FOLDED_FROM
from supervisor.stores.records import ClaimRequest, EnqueueRow, Waiting
from tests.stores.factories import POLICY, again, success

QUEUES = [f"queue {number:04}" for number in range(2 * ROWS_OF_A_LOOK + 300)]

POSTGRESQL = pytest.mark.parametrize("factory", ["postgresql"], indirect=True)
DURABLE = pytest.mark.parametrize("factory", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def store(factory):
    store = factory.joined("one")
    store.enqueue([EnqueueRow("mail", "1", queue=queue) for queue in QUEUES])
    return store


def claim(store, queues):
    return store.claim([ClaimRequest(queue, 1, 1, 1, 100) for queue in queues], 30.0, lambda handler, queue: POLICY)


def test_jobs_in_thousands_of_queues_are_found_and_claimed_in_turns(store):
    looks, claimed = 0, []
    while (look := store.look(None, 10)).waiting:
        looks += 1
        claimed += [lease.queue for lease in claim(store, look.waiting)]
        assert look.more or sorted(claimed) == QUEUES
    assert sorted(claimed) == QUEUES
    assert looks <= 4, "each look shows other queues"
    assert not look.more


@DURABLE
def test_a_look_shows_a_part_of_thousands_of_queues_and_the_next_one_another(store):
    looks = [store.look(None, 10) for _ in range(3)]
    assert all(look.more and len(look.waiting) < ROWS_OF_A_LOOK for look in looks)
    assert set().union(*[look.waiting for look in looks]) == set(QUEUES)


@DURABLE
def test_each_of_thousands_of_queues_has_its_turn_before_any_has_a_second_one(store):
    store.enqueue([EnqueueRow("mail", "1", queue=queue) for queue in QUEUES])
    capacity, claimed = 90, []
    for _ in range(len(QUEUES) // capacity):
        store.look(None, 10, stay=True)  # as for jobs that overtake others
        look = store.look(None, 10)
        shares = share_out(capacity, {queue: waiting.fresh for queue, waiting in look.waiting.items()}, None)
        claimed += [lease.queue for lease in claim(store, shares)]
    assert claimed == QUEUES[: len(claimed)]
    assert len(claimed) > len(QUEUES) - capacity


@DURABLE
def test_a_look_that_stays_shows_the_same_queues_again(store):
    claim(store, [*store.look(None, 10).waiting][:5])
    first = store.look(None, 10, stay=True)
    claim(store, QUEUES[100:101])
    assert next(iter(first.waiting)) == QUEUES[5]
    assert next(iter(store.look(None, 10).waiting)) == QUEUES[5]


def test_the_queue_that_a_look_begins_behind_is_shown_at_its_end(store):
    store.enqueue([EnqueueRow("mail", "1", queue=QUEUES[4])])
    store.look(None, 10)
    claim(store, [*QUEUES[5:], QUEUES[4]])
    look = store.look(None, 10)
    assert (set(look.waiting), look.more) == (set(QUEUES[:5]), False)


def test_served_queues_are_found_behind_thousands_of_others(store):
    served = frozenset(QUEUES[-3:])
    look = store.look(served, 10)
    assert (set(look.waiting), look.more) == (served, False)


@DURABLE
def test_a_queue_is_shown_with_both_of_its_tiers(store):
    """Also one at the end of what a look shows."""
    claim(store, QUEUES)
    for queue in QUEUES:
        store.enqueue([EnqueueRow("mail", "1", queue=queue)])
    assert store.settle([again(lease, delay=0.0) for lease in store.leases([id for id, _ in store.held()])]) == []
    for _ in range(3):
        assert set(store.look(None, 5000).waiting.values()) == {Waiting(1, 1)}


def test_a_queue_that_has_become_ready_is_named_wherever_the_look_begins(store, factory):
    store.enqueue([EnqueueRow("mail", "1", queue=queue, delay=10.0) for queue in ("first", "zzz", QUEUES[5])])
    factory.clock.step(10)
    assert store.look(None, 10).newly_ready == {("first", 0), ("zzz", 0)}


def plan(node):
    yield node
    for child in node.get("Plans", ()):
        yield from plan(child)


@POSTGRESQL
@pytest.mark.parametrize("only_claimable", [False, True])
def test_a_look_reads_no_counts_of_queues_behind_the_last_one_it_shows(store, only_claimable):
    parameters = (QUEUES[500], ROWS_OF_A_LOOK, None, only_claimable)
    with store.transaction():
        ((explained,),) = store.connection.rows(f"explain (analyze, format json) {LOOK}", *parameters)
    read = [node["Actual Rows"] for node in plan(explained[0]["Plan"]) if node.get("Relation Name") == "counts"]
    assert 0 < sum(read) <= ROWS_OF_A_LOOK + 1


@POSTGRESQL
def test_queues_without_ready_jobs_are_soon_read_no_more(factory, store):
    """Neither after their jobs are done, nor while the queues are paused or not served."""
    store.pause(QUEUES[0], True)
    for _ in range(FOLDED_FROM + 20):
        store.enqueue([EnqueueRow("mail", "1", queue=queue) for queue in (QUEUES[0], "not served")])
    served = frozenset(QUEUES)
    while (look := store.look(served, 10)).waiting:
        store.settle([success(lease) for lease in claim(store, look.waiting)])
    for _ in range(3):
        assert not store.look(served, 10).waiting
    counted = factory.sql("select queue, sum(n), count(*) from {s}.counts where state = 1 group by queue").fetchall()
    assert sorted(counted) == [("not served", 120, 1), (QUEUES[0], 121, 1)]
    assert factory.sql("select sum(n) from {s}.counts where state = 3").fetchone() == (len(QUEUES) - 1,)


@POSTGRESQL
def test_a_look_finds_the_last_queue_behind_thousands_whose_jobs_others_have_claimed(factory, store):
    claim(factory.joined("other"), QUEUES[:-1])
    assert set(store.look(None, 10).waiting) == {QUEUES[-1]}
