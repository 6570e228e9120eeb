"""Waiting jobs are moved to another queue, and the counts stay right."""

from __future__ import annotations

import pytest

from supervisor.jobs import JobState
from supervisor.stores import by_filter
from supervisor.stores.by_filter import DELETE_WAITING, EMPTY, change_all, find_all, move_to
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow, Waiting
from supervisor.stores.search import JobFilter
from tests.stores.factories import (
    ON_POSTGRESQL,
    dead,
    make_retries,
    promote,
    put,
    release,
    states,
    success,
    take,
    waiting,
)
from tests.stores.test_postgres_locks import locked


def queues_of(store, ids):
    return [store.get(id)["queue"] for id in ids]


def counted(store):
    return {
        row["queue"]: (row["queue_size"], row["retry_queue_size"], row["blocked"], row["scheduled"], row["in_flight"])
        for row in store.stats()["queues"]
        if any(value for name, value in row.items() if name not in ("queue", "paused"))
    }


def change(store, command, queue):
    where = JobFilter(queue=queue)
    return change_all(lambda ask: ask(store), command, where, find_all(lambda ask: ask(store), command, where, None))


def test_moved_jobs_are_claimed_from_their_new_queue_in_the_same_order(store, factory):
    low, high = put(store, "a")[0], put(store, "b", priority=5)[0]
    (other,) = put(store, "c", queue="to")
    assert store.move([low, high], "to").changed == {low: JobState.READY, high: JobState.READY}
    assert waiting(store) == {"to": Waiting(3, 0)}
    assert take(store) == []
    assert [lease.id for lease in take(store, queue="to")] == [high, low, other]
    factory.check()


def test_all_that_waits_is_moved_and_nothing_else(store, factory):
    (retry,) = make_retries(factory, store, "r")
    running, ended, failed = put(store, *"xyz")
    leases = {lease.id: lease for lease in take(store, 4)}
    store.settle([success(leases[ended]), dead(leases[failed]), release(leases[retry])])
    ready, (later,) = put(store, *"ab"), put(store, delay=60.0)
    first, second = store.enqueue([EnqueueRow("k", "null", extras=Extras(key="k"))] * 2)
    assert counted(store) == {"default": (3, 1, 1, 1, 1)}
    result = change(store, move_to("to"), "default")
    assert result == (6, {})
    moved = [retry, *ready, later, first, second]
    assert queues_of(store, moved) == ["to"] * 6
    assert queues_of(store, [running, ended, failed]) == ["default"] * 3
    assert counted(store) == {"default": (0, 0, 0, 0, 1), "to": (3, 1, 1, 1, 0)}
    assert store.move([running, ended], "to").refused == {
        running: "in flight: it ends in its queue", ended: "already succeeded",
    }  # fmt: skip
    factory.check()


def test_a_moved_job_becomes_due_and_is_retried_in_its_new_queue(store, factory):
    (id,) = put(store, delay=60.0)
    store.move([id], "to")
    factory.clock.step(60.0)
    assert promote(store, 10) == 1
    (lease,) = take(store, queue="to")
    assert (lease.id, lease.queue) == (id, "to")
    store.settle([success(lease)])
    factory.check()


def test_a_blocked_job_that_was_moved_goes_on_in_its_new_queue(store, factory):
    first, second = store.enqueue([EnqueueRow("k", "null", extras=Extras(key="k"))] * 2)
    store.move([second], "to")
    (lease,) = take(store)
    store.settle([success(lease)])
    assert states(store, [first, second]) == ["succeeded", "ready"]
    assert [lease.id for lease in take(store, queue="to")] == [second]
    factory.check()


def test_a_move_can_be_undone_and_moves_nothing_twice(store, factory):
    ids = put(store, *"abc")
    store.move(ids, "to")
    store.move(ids, "to")
    assert counted(store) == {"to": (3, 0, 0, 0, 0)}
    store.move(ids, "default")
    assert [lease.id for lease in take(store)] == ids
    assert take(store, queue="to") == []
    factory.check()


def test_a_transaction_that_fails_moves_nothing(store, factory):
    ids = put(store, *"ab")
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.move(ids, "to")
        raise ZeroDivisionError
    assert queues_of(store, ids) == ["default"] * 2
    assert [lease.id for lease in take(store)] == ids
    factory.check()


def test_moved_jobs_of_a_batch_are_changed_apart(store, factory):
    """They share what they were enqueued with."""
    ids = put(store, *["mail"] * 3)
    store.move(ids[:1], "to")
    assert queues_of(store, ids) == ["to", "default", "default"]
    factory.check()


def test_a_queue_is_emptied_of_all_that_waits(store, factory, monkeypatch):
    monkeypatch.setattr(by_filter, "BATCH", 2)
    running, *ready = put(store, *"abcd")
    take(store, 1)
    (later,), (other,) = put(store, delay=60.0), put(store, queue="other")
    assert change(store, EMPTY, "default") == (4, {})
    assert states(store, [running, *ready, later, other]) == ["in_flight", *["cancelled"] * 4, "ready"]
    put(store, *"ef")
    assert change(store, DELETE_WAITING, "default") == (2, {})
    assert counted(store) == {"default": (0, 0, 0, 0, 1), "other": (1, 0, 0, 0, 0)}
    factory.check()


def test_a_job_that_has_started_meanwhile_is_left_alone(store):
    (id,) = put(store)
    where = JobFilter(queue="default")
    found = find_all(lambda ask: ask(store), EMPTY, where, None)
    take(store)
    left = {"in flight by now": 1}
    for command in (EMPTY, DELETE_WAITING, move_to("to")):
        assert change_all(lambda ask: ask(store), command, where, found) == (0, left)
    assert states(store, [id]) == ["in_flight"]


def test_jobs_are_moved_in_the_transaction_that_has_enqueued_them(store, factory):
    with store.transaction():
        ids = put(store, *"ab", queue="new")
        store.move(ids, "to")
    assert counted(store) == {"to": (2, 0, 0, 0, 0)}
    factory.check()


@ON_POSTGRESQL
def test_the_counts_of_many_moved_jobs_are_few_rows(store, factory):
    store.move(put(store, *["mail"] * 500), "to")
    ((rows,),) = factory.sql("select count(*) from {s}.counts")
    assert rows <= 2
    factory.check()


@ON_POSTGRESQL
def test_jobs_are_moved_while_another_session_has_locked_counts(store, factory):
    ids = put(store, "mail")
    with locked(factory, "counts", "true"):
        store.move(ids, "to")
    assert counted(store) == {"to": (1, 0, 0, 0, 0)}
    factory.check()
