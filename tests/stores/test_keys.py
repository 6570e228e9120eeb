"""Jobs that have the same key run one at a time, in the order in which they were enqueued or came due; other jobs are not held up."""

from __future__ import annotations

import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.jobs import JobState
from supervisor.stores.extras import Extras
from supervisor.stores.problems import problems
from supervisor.stores.records import EnqueueRow
from supervisor.stores.stuck import MAX_LOOKED_AT
from supervisor.stores.waiting import waiting_because
from tests.stores.factories import IN_SQL, again, dead, promote, put, release, states, success, take, take_one, waiting

WITHOUT_KAFKA = "the order of records by key is that of their topic"


def keyed(store, *keys, on_failure="pass", **options):
    return store.enqueue(
        [EnqueueRow("mail", "{}", extras=Extras(key=key, on_failure=on_failure), **options) for key in keys]
    )


def ids_of(leases):
    return [lease.id for lease in leases]


def test_only_the_first_job_of_each_key_can_be_claimed(store):
    ids = keyed(store, "a", "a", "b", "a", "b")
    (plain,) = put(store)
    assert states(store, ids) == ["ready", "blocked", "ready", "blocked", "blocked"]
    assert ids_of(take(store)) == [ids[0], ids[2], plain]
    assert take(store) == []


def test_the_next_job_of_a_key_is_ready_once_the_one_before_has_succeeded(store):
    first, second, third = keyed(store, "a", "a", "a")
    for expected in (first, second, third):
        lease = take_one(store)
        assert lease.id == expected
        assert take(store) == []
        assert store.settle([success(lease)]) == []
    assert states(store, [first, second, third]) == ["succeeded"] * 3
    assert waiting(store) == {}


def test_the_store_says_in_which_queues_jobs_can_go_on(store):
    keyed(store, "a", "a", queue="mail")
    keyed(store, "b", queue="other")
    assert store.newly_ready() == frozenset()
    store.settle([success(lease) for lease in (*take(store, queue="mail"), *take(store, queue="other"))])
    assert store.newly_ready() == {"mail"}
    assert store.newly_ready() == frozenset()


def test_a_retry_keeps_the_place_of_its_job(factory, store):
    first, second = keyed(store, "a", "a")
    store.settle([again(take_one(store), delay=5.0)])
    assert take(store) == []
    factory.clock.step(5)
    promote(store, 10)
    lease = take_one(store)
    assert lease.id == first
    store.settle([success(lease)])
    assert take_one(store).id == second


def test_a_released_job_keeps_its_place(store):
    first, second = keyed(store, "a", "a")
    store.settle([release(take_one(store))])
    assert take_one(store).id == first
    assert states(store, [second]) == ["blocked"]


def test_a_lost_lease_keeps_the_place_of_its_job(factory, store):
    first, _ = keyed(store, "a", "a")
    take_one(store)
    other = factory.joined("two")
    factory.clock.step(3600)
    (expired,) = other.expired_leases(10)
    other.recover([release(expired.lease)._replace(seen=expired.deadline)])
    assert take_one(other).id == first
    assert take(other) == []


def test_a_job_that_has_failed_lets_the_next_one_pass(store):
    _, second = keyed(store, "a", "a")
    store.settle([dead(take_one(store))])
    assert take_one(store).id == second


def test_a_job_that_has_failed_may_hold_its_key_until_it_is_redriven(store):
    first, second = keyed(store, "a", "a", on_failure="hold")
    store.settle([dead(take_one(store))])
    assert take(store) == []
    assert states(store, [first, second]) == ["failed", "blocked"]
    store.redrive([first], force=True)
    lease = take_one(store)
    assert lease.id == first
    store.settle([success(lease)])
    assert take_one(store).id == second


def test_a_job_that_has_failed_and_holds_its_key_is_not_pruned(factory, store):
    first, second, plain = *keyed(store, "a", "a", on_failure="hold"), *keyed(store, "b")
    store.settle([dead(lease, dead_letter=False) for lease in take(store)])
    factory.clock.step(10)
    assert store.prune(RetentionSettings(failed=1.0), 100) == 1
    assert states(store, [first, second]) == ["failed", "blocked"]
    assert store.get(plain) is None
    store.delete([second])
    assert store.prune(RetentionSettings(failed=1.0), 100) == 0, "it holds up the next job of the key too"
    (third,) = keyed(store, "a")
    assert states(store, [third]) == ["blocked"]


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_job_that_is_cancelled_or_deleted_lets_the_next_one_pass(store, end):
    first, second = keyed(store, "a", "a")
    getattr(store, end)([first])
    assert states(store, [second]) == ["ready"]


def test_a_key_that_is_held_by_a_failed_job_is_free_when_that_is_deleted(store):
    first, second = keyed(store, "a", "a", on_failure="hold")
    store.settle([dead(take_one(store))])
    store.delete([first], force=True)
    assert take_one(store).id == second


def test_a_blocked_job_can_be_cancelled(store):
    first, second, third = keyed(store, "a", "a", "a")
    assert store.cancel([second]).changed == {second: JobState.BLOCKED}
    store.settle([success(take_one(store))])
    assert states(store, [first, second, third]) == ["succeeded", "cancelled", "ready"]


def test_a_job_for_later_holds_no_key_before_it_is_due(factory, store):
    (later,) = keyed(store, "a", delay=10.0)
    (now,) = keyed(store, "a")
    lease = take_one(store)
    assert lease.id == now
    factory.clock.step(10)
    promote(store, 10)
    assert states(store, [later]) == ["blocked"]
    store.settle([success(lease)])
    assert take_one(store).id == later


def test_a_job_that_is_made_due_by_hand_waits_for_its_key_too(store):
    (later,) = keyed(store, "a", delay=10.0)
    (now,) = keyed(store, "a")
    store.retry([later])
    assert states(store, [later, now]) == ["blocked", "ready"]


def test_a_redriven_job_waits_behind_the_one_that_runs(store):
    first, second = keyed(store, "a", "a")
    store.settle([dead(take_one(store))])
    lease = take_one(store)
    assert lease.id == second
    store.redrive([first], force=True)
    assert states(store, [first]) == ["blocked"]
    store.settle([success(lease)])
    assert take_one(store).id == first


def test_an_outcome_that_comes_too_late_passes_no_key_on(factory, store):
    _, second = keyed(store, "a", "a")
    lease = take_one(store)
    other = factory.joined("two")
    factory.clock.step(3600)
    (expired,) = other.expired_leases(10)
    other.recover([release(expired.lease)._replace(seen=expired.deadline)])
    assert store.settle([success(lease)]) == [lease.id]
    assert states(store, [second]) == ["blocked"]


def test_blocked_jobs_are_counted_and_waited_for(store):
    keyed(store, "a", "a", "a")
    (row,) = store.stats()["queues"]
    assert (row["queue_size"], row["blocked"]) == (1, 2)
    assert store.remaining(None, None) == {"ready": 1, "blocked": 2}
    assert [job["key"] for job in store.list_jobs(state=JobState.BLOCKED)] == ["a", "a"]


def test_a_blocked_job_says_for_which_job_it_waits(store):
    first, second = keyed(store, "a", "a", on_failure="hold")
    assert store.get(first)["key_held_by"] is None
    assert store.get(second)["key_held_by"] == {"id": first, "state": "ready", "on_failure": "hold"}
    waits = waiting_because(store.get(second), store.stats())
    assert waits == f"job {first}, which is ready, is before it in the order of its key a: wait until it has ended"
    store.settle([dead(take_one(store))])
    assert f"job {first}, which has failed, holds its key a" in waiting_because(store.get(second), store.stats())


def test_a_transaction_that_fails_leaves_the_order_as_it_was(store):
    first, second = keyed(store, "a", "a")
    lease = take_one(store)
    with pytest.raises(RuntimeError), store.transaction():
        store.settle([success(lease)])
        raise RuntimeError
    assert states(store, [first, second]) == ["in_flight", "blocked"]
    assert store.newly_ready() == frozenset()
    store.settle([success(lease)])
    assert take_one(store).id == second


def test_many_keys_at_once(store):
    ids = keyed(store, *[f"key {n % 50}" for n in range(200)])
    order: dict[str, list[int]] = {}
    for _ in range(4):
        leases = take(store, 200)
        assert len(leases) == 50
        for lease in leases:
            order.setdefault(store.get(lease.id)["key"], []).append(lease.id)
        assert store.settle([success(lease) for lease in leases]) == []
    assert all(found == sorted(found) for found in order.values())
    assert sorted(id for found in order.values() for id in found) == ids


@IN_SQL
@pytest.mark.parametrize("change", ["update {s}.jobs set state = 5, finished_at = 0", "delete from {s}.jobs"])
def test_the_end_of_a_job_by_plain_sql_is_found_by_a_repair(factory, store, change):
    first, second = keyed(store, "a", "a")
    factory.sql(f"{change} where id = {first}")
    assert "jobs in default go on that waited for jobs that have ended" in store.repair()
    assert states(store, [second]) == ["ready"]
    assert store.newly_ready() == {"default"}
    assert store.repair() == ""


def test_the_status_names_a_failed_job_that_holds_its_key_while_others_wait(factory, store):
    (first,) = keyed(store, "a", on_failure="hold")
    store.settle([dead(take_one(store))])
    assert store.stats()["stuck"] == []
    second, third, fourth = keyed(store, "a", "a", "b", on_failure="hold")
    found = {"kind": "key_held", "handler": "mail", "state": "failed", "child": None}
    assert store.stats()["stuck"] == [{**found, "job_id": first, "key": "a", "waiting": 2}]
    store.settle([dead(take_one(store))])
    keyed(store, "b")
    assert [row["job_id"] for row in store.stats()["stuck"]] == [first, fourth]
    (problem,) = [it for it in problems(store.stats()) if it.kind == "key_held"]
    assert problem.message == (
        f"job {first} (mail), which has failed, holds its key a, and 2 jobs wait for it; 1 other failed job holds its key too"
    )
    store.cancel([second, third])
    store.retry([fourth], force=True)
    assert store.stats()["stuck"] == []


def test_a_held_key_is_found_among_very_many_other_jobs_that_have_failed(factory, store):
    (first,) = keyed(store, "a", on_failure="hold")
    store.settle([dead(take_one(store))])
    keyed(store, "a")
    for _ in range(2):
        factory.clock.step(1)
        put(store, *["mail"] * MAX_LOOKED_AT)
        store.settle([dead(lease) for lease in take(store, MAX_LOOKED_AT)])
    assert [row["job_id"] for row in store.stats()["stuck"]] == [first], "the oldest blocked job waits for it"
