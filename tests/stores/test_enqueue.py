from __future__ import annotations

import pytest

from supervisor.jobs import Backoff
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow, Waiting
from tests.stores.factories import POLICY, again, next_due, promote, put, state_of, take, take_one, waiting


def test_ids_come_in_order_and_are_never_given_again(factory, store):
    first = put(store, "a", "b", "c")
    assert first == sorted(first)
    store.delete(first)
    assert put(store, "d")[0] > first[-1]


def test_an_empty_batch_is_enqueued(store):
    assert store.enqueue([]) == []


def test_a_new_job_is_shown_with_all_its_keys(factory, store):
    (id,) = store.enqueue([EnqueueRow("mail", '{"to": ["a", "b"]}', "post", 7, headers='{"trace": "x"}')])
    now = "2023-11-14T22:13:20.000000Z"
    assert store.get(id) == {
        "id": id,
        "handler": "mail",
        "payload": {"to": ["a", "b"]},
        "queue": "post",
        "priority": 7,
        "state": "ready",
        "attempt": 1,
        "retries": 0,
        "max_retries": None,
        "due_at": now,
        "created_at": now,
        "started_at": None,
        "finished_at": None,
        "result": None,
        "headers": {"trace": "x"},
        "errors": [],
        "dead_letter": None,
        "missing_sinks": [],
        "expired_count": 0,
        "lease": None,
        "progress": None,
        "log": None,
        "snoozes": 0,
        "snoozed_until": None,
        "unique": None,
        "key": None,
        "unique_while": None,
        "on_failure": "pass",
        "on_parent_failed": "cancel",
        "options": {"max_retries": None, "timeout": None, "backoff": None},
        "group": None,
        "after": [],
        "parents": [],
        "children": [],
        "tags": [],
        "expires_at": None,
        "key_held_by": None,
    }
    assert list(store.get(id))[:3] == ["id", "handler", "payload"]


def test_what_a_job_has_of_its_own_is_shown(store):
    its = {"timeout": 0.0, "max_retries": 7, "backoff": Backoff(1.0, 4.0, 60.0, "none")}
    waits, day = (
        Extras(unique=name, unique_while=how, on_parent_failed="run")
        for name, how in (("a", "waiting"), ("b", 86_400_000_000))
    )
    ids = store.enqueue([EnqueueRow("mail", "{}", extras=waits, **its), EnqueueRow("mail", "{}", extras=day)])
    first, second = map(store.get, ids)
    backoff = {"base": 1.0, "factor": 4.0, "max": 60.0, "jitter": "none"}
    assert first["options"] == {"max_retries": 7, "timeout": 0.0, "backoff": backoff}
    assert (first["unique_while"], second["unique_while"]) == ("waiting", 86_400.0)
    assert first["on_parent_failed"] == "run"


def test_a_job_that_does_not_exist_is_none(store):
    assert store.get(12345) is None


@pytest.mark.parametrize("when", ["delay", "at"])
def test_a_later_job_waits_until_it_is_due(factory, store, when):
    due = {"delay": 10.0} if when == "delay" else {"at": factory.clock.microseconds + 10_000_000}
    (id,) = put(store, **due)
    assert state_of(store, id) == "scheduled"
    assert next_due(store) == 10.0
    factory.clock.step(9.999)
    assert promote(store, 10) == 0
    factory.clock.step(0.001)
    assert next_due(store) == 0.0
    assert promote(store, 10) == 1
    assert [lease.id for lease in take(store)] == [id]
    assert next_due(store) is None


def test_a_job_whose_time_has_passed_is_ready_at_once(factory, store):
    (id,) = put(store, at=factory.clock.microseconds - 1)
    assert state_of(store, id) == "ready"


def test_promotion_is_bounded_and_takes_the_earliest_first(factory, store):
    later, sooner = put(store, delay=20.0) + put(store, delay=10.0)
    factory.clock.step(30)
    assert promote(store, 1) == 1
    assert (state_of(store, later), state_of(store, sooner)) == ("scheduled", "ready")


def test_the_next_job_to_come_due_is_the_soonest_of_all(factory, store):
    later, sooner = put(store, delay=20.0) + put(store, delay=10.0)
    assert next_due(store) == 10.0
    factory.clock.step(10)
    assert promote(store, 10) == 1
    assert (state_of(store, later), state_of(store, sooner), next_due(store)) == ("scheduled", "ready", 10.0)


def test_a_job_keeps_the_order_of_its_enqueue_however_late_it_was_due(factory, store):
    (early,) = put(store, delay=10.0)
    (late,) = put(store)
    factory.clock.step(10)
    promote(store, 10)
    assert [lease.id for lease in take(store)] == [early, late]


def test_a_jobs_own_settings_are_laid_over_its_policy(store):
    backoff = Backoff(1.0, 4.0, 60.0, "none")
    put(store, max_retries=7, timeout=1.5, backoff=backoff)
    assert take_one(store).policy == POLICY._replace(max_retries=7, timeout=1.5, backoff=backoff)
    (id,) = put(store, timeout=0.0)
    assert take_one(store).policy == POLICY._replace(timeout=None)
    assert store.get(id)["max_retries"] == POLICY.max_retries


SOON = 1_700_000_001_000_000
OWN = EnqueueRow(
    "other", "[]", "others", 7, 1.0, SOON, 7, 2.5, Backoff(1.0, 4.0, 60.0, "none"), '{"trace": "x"}', Extras(tags=("eu",)),
)  # fmt: skip


@pytest.mark.parametrize("many", [3, 450])
@pytest.mark.parametrize("field", EnqueueRow._fields)
def test_each_of_many_jobs_keeps_its_own_values(factory, store, field, many):
    """Though values that they share may be written once for all."""
    shared = EnqueueRow("mail", "{}")
    own = shared._replace(**{field: getattr(OWN, field)})
    rows = [shared, own, *[shared] * (many - 3), own]
    like = dict(zip([shared, own], [*store.enqueue([shared]), *store.enqueue([own])], strict=True))
    ids = store.enqueue(rows)
    shown = {id: {**store.get(id), "id": 0} for id in (*like.values(), *ids)}
    factory.clock.step(2)
    promote(store, many)
    leases = {lease.id: lease._replace(id=0) for queue in ("default", "others") for lease in take(store, 1000, queue)}
    assert len(leases) == len(shown)
    for id, row in zip(ids, rows, strict=True):
        assert (shown[id], leases[id]) == (shown[like[row]], leases[like[row]])


def test_max_retries_is_shown_once_it_is_known(store):
    own, others = put(store, max_retries=0) + put(store)
    assert (store.get(own)["max_retries"], store.get(others)["max_retries"]) == (0, None)
    take(store)
    assert (store.get(own)["max_retries"], store.get(others)["max_retries"]) == (0, 3)


def test_waiting_jobs_are_counted_by_queue(factory, store):
    put(store, queue="a")
    put(store, "x", "y", queue="b")
    put(store, queue="c", delay=5.0)
    assert waiting(store) == {"a": Waiting(1, 0), "b": Waiting(2, 0)}
    assert waiting(store, frozenset({"b", "c"})) == {"b": Waiting(2, 0)}
    store.pause("b", True)
    assert waiting(store) == {"a": Waiting(1, 0)}
    store.pause("b", False)
    assert waiting(store)["b"] == Waiting(2, 0)


def test_a_look_names_the_queues_and_tiers_that_had_no_ready_job_before_it(factory, store):
    put(store, queue="a")
    for queue in ("a", "b", "paused"):
        put(store, queue=queue, delay=10.0)
    store.pause("paused", True)
    assert store.look(None, 10).newly_ready == frozenset()
    factory.clock.step(10)
    assert store.look(frozenset("a"), 10).newly_ready == {("b", 0)}
    store.settle([*map(again, take(store, queue="b"))])
    factory.clock.step(10)
    assert store.look(None, 10).newly_ready == {("b", 1)}
    assert store.look(None, 10).newly_ready == frozenset()
    put(store, queue="b", delay=10.0)
    factory.clock.step(10)
    assert store.look(None, 10).newly_ready == {("b", 0)}, "the fresh job of before was claimed"
