"""A unique key: as long as a job has it, the same key adds no second job, whoever enqueues, and however many at once."""

from __future__ import annotations

import pickle

import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.errors import JobExists, StoreError
from supervisor.jobs import JobState
from supervisor.stores.extras import UNFINISHED, WAITING, ExistingId, Extras
from supervisor.stores.job_limits import Limit
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.records import EnqueueRow
from supervisor.stores.search import JobFilter
from tests.stores.at_once import beside
from tests.stores.factories import (
    ON_POSTGRESQL,
    again,
    dead,
    make_retries,
    promote,
    put,
    release,
    states,
    success,
    take,
    take_one,
    waiting,
)
from tests.stores.test_limits import claim, handlers

WITHOUT_KAFKA = "a topic takes every record: who consumes it can't know the others"
MINUTE = 60_000_000


def row(unique="report:42", payload="{}", how="skip", during=UNFINISHED, handler="mail", **options):
    extras = {name: options.pop(name) for name in Extras._fields if name in options}
    return EnqueueRow(handler, payload, extras=Extras(unique, during, how, **extras), **options)


def enqueue(store, *arguments, **options):
    (id,) = store.enqueue([row(*arguments, **options)])
    return id


def all_ids(store):
    return sorted(job["id"] for job in store.list_jobs(limit=1000))


def test_the_second_job_with_a_key_is_the_first_one(factory, store):
    first = enqueue(store)
    second = enqueue(store, payload='"other"')
    assert not isinstance(first, ExistingId) and isinstance(second, ExistingId)
    assert second == first and all_ids(store) == [first]
    assert store.get(first)["payload"] == {} and store.get(first)["unique"] == "report:42"
    assert enqueue(store, "report:43") != first
    factory.check()


@pytest.mark.parametrize(
    ("during", "free"),
    [(UNFINISHED, ["succeeded", "failed", "cancelled"]), (WAITING, ["in_flight", "succeeded", "failed", "cancelled"])],
)
def test_the_key_is_free_once_its_job_has_started_or_ended(factory, store, during, free):
    found = []
    for state, moves in {
        "scheduled": {"delay": 60.0},
        "ready": {},
        "in_flight": {},
        "succeeded": {"end": success},
        "failed": {"end": dead},
        "cancelled": {},
    }.items():
        end = moves.pop("end", None)
        id = enqueue(store, state, during=during, **moves)
        if state in ("in_flight", "succeeded", "failed"):
            (lease,) = [lease for lease in take(store) if lease.id == id]
            store.settle([end(lease)] if end else [])
        if state == "cancelled":
            store.cancel([id])
        assert states(store, [id]) == [state]
        if not isinstance(enqueue(store, state, during=during), ExistingId):
            found.append(state)
        store.cancel(all_ids(store))
    assert found == free


def test_the_key_of_a_job_that_waits_for_a_retry_is_taken(factory, store):
    first = enqueue(store, during=WAITING)
    store.settle([again(take_one(store))])
    assert enqueue(store, during=WAITING) == first


def test_a_time_is_counted_from_the_enqueue_and_holds_for_ended_and_deleted_jobs(factory, store):
    first = enqueue(store, during=10 * MINUTE)
    store.settle([success(take_one(store))])
    factory.clock.step(300)
    assert enqueue(store, during=10 * MINUTE) == first
    store.delete([first])
    assert enqueue(store, during=10 * MINUTE) == first and all_ids(store) == []
    factory.clock.step(300)
    second = enqueue(store, during=10 * MINUTE)
    assert second > first and not isinstance(second, ExistingId)


def test_after_its_time_a_key_is_free_although_its_job_has_not_ended(factory, store):
    first = enqueue(store, during=MINUTE)
    factory.clock.step(60)
    assert enqueue(store, during=MINUTE) != first


def test_the_job_that_has_the_key_says_how_long(factory, store):
    first = enqueue(store, during=WAITING)
    take_one(store)
    assert enqueue(store, during=UNFINISHED) != first


def test_a_refused_job_names_the_one_that_is_there(factory, store):
    first = enqueue(store)
    with pytest.raises(JobExists, match=f"job {first} has the unique key 'report:42'") as caught:
        enqueue(store, how="reject")
    assert (caught.value.id, caught.value.key) == (first, "report:42")
    assert isinstance(caught.value, StoreError)
    assert all_ids(store) == [first]


def test_a_batch_with_a_refused_job_adds_none(factory, store):
    first = enqueue(store)
    before = all_ids(store)
    with pytest.raises(JobExists) as caught:
        store.enqueue([row("new"), EnqueueRow("mail", "{}"), row(how="reject")])
    assert caught.value.id == first
    assert all_ids(store) == before
    assert not isinstance(enqueue(store, "new"), ExistingId)
    factory.check()


def test_a_batch_that_refuses_its_own_second_row(factory, store):
    with pytest.raises(JobExists, match="an earlier job of this batch has the unique key 'a'") as caught:
        store.enqueue([row("a"), row("b"), row("a", how="reject")])
    assert (caught.value.id, caught.value.key) == (None, "a")
    there = enqueue(store, "there")
    with pytest.raises(JobExists, match=f"job {there} has the unique key 'there'") as caught:
        store.enqueue([row("a"), row("there"), row("there", how="reject")])
    assert caught.value.id == there
    store.delete([there])
    assert all_ids(store) == []
    assert not isinstance(enqueue(store, "a"), ExistingId)


def test_rows_of_one_batch_share_a_key(factory, store):
    there = enqueue(store, "there")
    rows = [row("a"), EnqueueRow("mail", "{}"), row("b"), row("a"), row("there"), row("b"), row("c")]
    ids = store.enqueue(rows)
    assert [isinstance(id, ExistingId) for id in ids] == [False, False, False, True, True, True, False]
    assert (ids[3], ids[4], ids[5]) == (ids[0], there, ids[2])
    assert len(all_ids(store)) == 5
    assert ids == [int(id) for id in ids] and sorted(set(ids)) == all_ids(store)
    factory.check()


def test_a_large_batch_is_as_one_by_one(factory, store):
    there = store.enqueue([row(f"key {n}") for n in range(0, 1000, 2)])
    ids = store.enqueue([row(f"key {n}") for n in range(1000)])
    assert ids[::2] == there
    assert [isinstance(id, ExistingId) for id in ids] == [n % 2 == 0 for n in range(1000)]
    assert len(all_ids(store)) == 1000
    factory.check()


def test_a_job_that_waits_is_replaced(factory, store):
    first = enqueue(store, payload='"old"', priority=1, headers='{"a": 1}', tags=("one",))
    put(store, "between")
    new = row(payload='"new"', how="replace", handler="other", queue="post", priority=7, max_retries=1, tags=("two",))
    (second,) = store.enqueue([new])
    assert isinstance(second, ExistingId) and second == first and second.replaced
    job = store.get(first)
    assert (job["handler"], job["payload"], job["queue"], job["priority"]) == ("other", "new", "post", 7)
    assert (job["headers"], job["tags"], job["max_retries"], job["state"]) == ({}, ["two"], 1, "ready")
    assert [[job["id"] for job in store.find_jobs(JobFilter(tag=tag)).jobs] for tag in ("one", "two")] == [[], [first]]
    assert [lease.handler for lease in take(store)] == ["between"]
    (lease,) = take(store, queue="post")
    assert (lease.id, lease.payload, lease.policy.max_retries) == (first, '"new"', 1)
    factory.check()


@pytest.mark.parametrize("texts", [("x", "y" * 3000), ("x" * 3000, "y"), ("x" * 3000, "y" * 3000)])
def test_a_long_payload_and_long_headers_are_replaced(factory, store, texts):
    old, new = (f'"{text}"' for text in texts)
    enqueue(store, payload=old, headers=f'{{"a": {old}}}')
    enqueue(store, payload=new, headers=f'{{"a": {new}}}', how="replace")
    lease = take_one(store)
    assert (lease.payload, lease.headers) == (new, f'{{"a": {new}}}')


def test_a_replaced_job_has_the_new_due_time(factory, store):
    first = enqueue(store, delay=10.0)
    factory.clock.step(5)
    enqueue(store, delay=10.0, how="replace")
    factory.clock.step(5)
    assert promote(store, 10) == 0 and take(store) == []
    factory.clock.step(5)
    assert promote(store, 10) == 1
    enqueue(store, delay=10.0, how="replace")
    assert states(store, [first]) == ["scheduled"] and waiting(store) == {}
    enqueue(store, how="replace")
    assert take_one(store).id == first
    factory.check()


def test_a_replaced_job_that_waits_for_a_retry_begins_anew(factory, store):
    make_retries(factory, store, "plain")
    first = enqueue(store, payload='"old"')
    take(store)
    (lease,) = store.leases([first])
    store.settle([again(lease)])
    assert enqueue(store, payload='"new"', how="replace") == first
    job = store.get(first)
    assert (job["retries"], job["state"], len(job["errors"])) == (0, "ready", 1)
    lease = take_one(store)
    assert (lease.id, lease.payload, lease.attempt, lease.tier) == (first, '"new"', 1, 0)
    factory.check()


@pytest.mark.parametrize("end", [None, success])
def test_a_job_that_runs_or_has_ended_is_not_replaced(factory, store, end):
    first = enqueue(store, payload='"old"', during=10 * MINUTE)
    lease = take_one(store)
    if end is not None:
        store.settle([end(lease)])
    before = store.get(first)
    found = enqueue(store, payload='"new"', how="replace", during=10 * MINUTE)
    assert (found, found.replaced) == (first, False)
    assert store.get(first) == before


def test_the_newest_payload_runs_if_a_running_job_has_no_key(factory, store):
    first = enqueue(store, payload="1", during=WAITING, how="replace")
    lease = take_one(store)
    second = enqueue(store, payload="2", during=WAITING, how="replace")
    assert second != first
    assert enqueue(store, payload="3", during=WAITING, how="replace") == second
    store.settle([success(lease)])
    assert take_one(store).payload == "3"


def test_a_replaced_job_keeps_its_place_in_the_order_of_its_key(factory, store):
    first = enqueue(store, "a", key="account")
    second = enqueue(store, "b", key="account", payload='"old"')
    assert enqueue(store, "b", payload='"new"', how="replace", delay=60.0) == second
    assert states(store, [first, second]) == ["ready", "blocked"]
    assert store.get(second)["key"] == "account"
    assert enqueue(store, "a", how="replace", delay=60.0) == first
    assert states(store, [first, second]) == ["scheduled", "blocked"]
    factory.clock.step(60)
    promote(store, 10)
    store.settle([success(take_one(store))])
    lease = take_one(store)
    assert (lease.id, lease.payload) == (second, '"new"')
    factory.check()


@pytest.mark.parametrize(
    ("old", "new", "key", "state"),
    [("pass", "hold", "account", "blocked"), ("hold", "pass", "account", "ready"), ("hold", "pass", None, "blocked")],
)
def test_a_replaced_job_that_fails_holds_its_key_or_passes_it_on_as_the_new_one_says(
    factory, store, old, new, key, state
):
    """A new job without a key says nothing about it."""
    first, second = enqueue(store, key="account", on_failure=old), enqueue(store, "b", key="account")
    assert enqueue(store, how="replace", key=key, on_failure=new) == first
    assert store.get(first)["on_failure"] == ("hold" if state == "blocked" else "pass")
    store.settle([dead(take_one(store))])
    assert states(store, [first, second]) == ["failed", state]
    factory.check()


def test_rows_of_one_batch_replace_each_other(factory, store):
    there = enqueue(store, "there")
    ids = store.enqueue(
        [row("a", "1"), row("a", "2", "replace"), row("a", "3", "replace"), row("there", "4", "replace")]
    )
    assert ids == [ids[0], ids[0], ids[0], there]
    assert [id.replaced for id in ids[1:]] == [True] * 3
    ids = store.enqueue([row("a"), row("a", "3", "replace"), EnqueueRow("mail", "{}"), row("there", "4", "replace")])
    assert [id.replaced for id in ids if isinstance(id, ExistingId)] == [False, True, True]
    assert pickle.loads(pickle.dumps(ids[1])).replaced
    assert [store.get(id)["payload"] for id in (ids[0], there)] == [3, 4]
    factory.check()


def test_a_replaced_time_is_counted_anew(factory, store):
    first = enqueue(store, during=MINUTE, delay=3600.0)
    factory.clock.step(59)
    enqueue(store, during=MINUTE, how="replace", delay=3600.0)
    factory.clock.step(59)
    assert enqueue(store, during=MINUTE) == first
    factory.clock.step(1)
    assert enqueue(store, during=MINUTE) != first


def test_an_ended_job_is_not_redriven_while_another_one_has_its_key(factory, store):
    first = enqueue(store)
    store.settle([dead(take_one(store))])
    second = enqueue(store)
    result = store.redrive([first], force=True)
    assert result.changed == {}
    assert f"its unique key 'report:42' is that of job {second} now" in result.refused[first]
    assert states(store, [first, second]) == ["failed", "ready"]
    store.settle([success(take_one(store))])
    assert store.redrive([first], force=True).changed == {first: JobState.FAILED}
    assert enqueue(store) == first
    factory.check()


@pytest.mark.parametrize("during", [UNFINISHED, WAITING])
def test_of_several_ended_jobs_with_one_key_one_is_redriven(factory, store, during):
    ids = []
    for _ in range(3):
        ids.append(enqueue(store, during=during))
        store.settle([dead(take_one(store))])
    result = store.redrive(None, force=True)
    assert list(result.changed) == ids[:1]
    assert [f"is that of job {ids[0]}" in result.refused[id] for id in ids[1:]] == [True, True]
    factory.check()


def test_a_cancelled_job_takes_its_key_back(factory, store):
    first = enqueue(store)
    store.cancel([first])
    store.retry([first])
    assert enqueue(store) == first


def test_a_job_that_ended_within_its_time_may_be_redriven(factory, store):
    first = enqueue(store, during=10 * MINUTE)
    store.settle([dead(take_one(store))])
    assert list(store.redrive([first], force=True).changed) == [first]
    assert enqueue(store, during=10 * MINUTE) == first


def test_a_job_that_is_deleted_or_pruned_leaves_its_key(factory, store):
    first = enqueue(store)
    store.settle([success(take_one(store))])
    factory.clock.step(100_000_000)
    assert store.prune(RetentionSettings(), 10) == 1
    second = enqueue(store)
    assert second > first
    store.delete([second])
    assert enqueue(store) > second


def test_a_transaction_that_fails_gives_no_key(factory, store):
    first = enqueue(store, "there", payload='"old"')
    with pytest.raises(RuntimeError), store.transaction():
        store.enqueue([row("a"), row("there", '"new"', "replace", priority=9)])
        raise RuntimeError
    assert all_ids(store) == [first] and store.get(first)["payload"] == "old"
    assert not isinstance(enqueue(store, "a"), ExistingId)
    assert take(store, 1)[0].id == first
    factory.check()


def test_a_lost_lease_keeps_the_key(factory, store):
    first = enqueue(store)
    lease = take_one(store)
    store.settle([release(lease)])
    assert enqueue(store) == first


def test_a_retry_goes_on_although_another_job_has_its_key_meanwhile(factory, store):
    first = enqueue(store, during=WAITING)
    lease = take_one(store)
    second = enqueue(store, during=WAITING)
    store.settle([again(lease, delay=1.0)])
    assert enqueue(store, during=WAITING) == second
    factory.clock.step(1)
    promote(store, 10)
    leases = take(store)
    assert sorted(lease.id for lease in leases) == [first, second]
    store.settle([success(lease) for lease in leases])
    assert states(store, [first, second]) == ["succeeded"] * 2


def test_an_old_key_is_removed_when_its_time_is_over(factory, store):
    first = enqueue(store, during=MINUTE)
    enqueue(store, "b", during=60 * MINUTE)
    store.settle([success(lease) for lease in take(store)])
    factory.clock.step(60)
    store.prune(RetentionSettings(), 10)
    assert holds(factory, store) == ["b"]
    assert enqueue(store, during=MINUTE) != first


def holds(factory, store):
    if isinstance(store, MemoryStore):
        return sorted(store.state.unique._by_key)
    return [key for (key,) in factory.sql("select unique_key from {s}.unique_jobs order by unique_key")]


def test_a_job_that_is_replaced_takes_no_further_turn_of_its_group(factory, store):
    first = enqueue(store, "x", group="a")
    second = enqueue(store, "y", group="b")
    for n in range(5):
        assert enqueue(store, "x", payload=str(n), how="replace") == first
    third, fourth = enqueue(store, "z", group="a"), enqueue(store, "w", group="b")
    assert [lease.id for lease in take(store)] == [first, second, third, fourth]
    assert store.get(first)["group"] == "a"
    factory.check()


LIMITS = handlers(mail=Limit(running=1))


def held_back(factory, store, retry):
    """Return the lease of a job at the limit of its handler, and a job that this limit holds back."""
    if retry:
        id = enqueue(store)
        store.settle([again(take_one(store), delay=1.0)])
        factory.clock.step(1)
        promote(store, 10)
        put(store, "mail", priority=1)
        (lease,) = [lease for lease in take(store) if lease.id != id or store.settle([release(lease)])]
    else:
        put(store, "mail")
        (lease,) = claim(store, LIMITS, 1).leases
        id = enqueue(store)
    assert claim(store, LIMITS).leases == []
    assert states(store, [id]) == ["blocked"]
    return lease, id


@pytest.mark.parametrize("retry", [False, True])
def test_a_job_that_a_limit_holds_back_is_replaced(factory, store, retry):
    lease, id = held_back(factory, store, retry)
    assert enqueue(store, payload='"new"', how="replace") == id
    assert states(store, [id]) == ["ready"]
    factory.check()
    assert claim(store, LIMITS).leases == []
    store.settle([success(lease)])
    (lease,) = claim(store, LIMITS).leases
    assert (lease.id, lease.payload, lease.tier) == (id, '"new"', 0)
    factory.check()


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize("queue", ["default", "other"])
def test_a_job_that_a_limit_holds_back_is_replaced_by_one_of_another_handler(factory, store, retry, queue):
    _, id = held_back(factory, store, retry)
    assert enqueue(store, how="replace", handler="other", queue=queue) == id
    assert [lease.id for lease in claim(store, LIMITS, queue=queue).leases] == [id]
    factory.check()


@pytest.mark.parametrize("retry", [False, True])
def test_a_job_that_a_limit_holds_back_is_put_off(factory, store, retry):
    lease, id = held_back(factory, store, retry)
    assert enqueue(store, how="replace", delay=60.0) == id
    assert states(store, [id]) == ["scheduled"]
    store.settle([success(lease)])
    assert claim(store, LIMITS).leases == []
    factory.clock.step(60)
    promote(store, 10)
    assert [lease.id for lease in claim(store, LIMITS).leases] == [id]
    factory.check()


@pytest.mark.parametrize("queue", ["default", "other"])
@pytest.mark.parametrize("delay", [None, 60.0])
def test_a_job_of_a_group_that_is_replaced_takes_one_turn(factory, store, queue, delay):
    first = enqueue(store, "x", group="a")
    second, third = enqueue(store, "y", group="a", queue=queue), enqueue(store, "z", group="b", queue=queue)
    assert enqueue(store, "x", how="replace", queue=queue, delay=delay) == first
    factory.clock.step(60)
    promote(store, 10)
    fourth = enqueue(store, "w", group="b", queue=queue)
    order = [lease.id for lease in take(store, queue=queue)]
    if queue == "other":
        assert order == [second, third, first, fourth]
    elif delay:
        assert order == [third, first, second, fourth], "a job that was put off gives its turn back, and takes it again"
    else:
        assert order == [first, third, second, fourth]
    factory.check()


def test_a_child_whose_key_another_job_has_meanwhile_stays_cancelled_when_its_parent_runs_again(factory, store):
    (parent,) = put(store, "mail")
    child = enqueue(store, after=(parent,))
    free = enqueue(store, "free", after=(parent,))
    grandchild = enqueue(store, "grandchild", after=(child,))
    store.settle([dead(take_one(store))])
    assert states(store, [child, free, grandchild]) == ["cancelled"] * 3
    other = enqueue(store)
    assert other != child
    store.redrive([parent], force=True)
    assert states(store, [parent, child, free, grandchild]) == ["ready", "cancelled", "blocked", "cancelled"]
    assert (enqueue(store), enqueue(store, "free")) == (other, free)
    assert enqueue(store, "grandchild") > other
    factory.check()


def test_children_that_are_restored_have_their_keys_again(factory, store):
    (parent,) = put(store, "mail")
    child = enqueue(store, after=(parent,))
    timed = enqueue(store, "timed", after=(parent,), during=MINUTE)
    twin = enqueue(store, "twin", during=WAITING, after=(parent,))
    store.settle([dead(take_one(store))])
    again_twin = enqueue(store, "twin", during=WAITING, after=(parent,), on_parent_failed="run")
    assert again_twin != twin and states(store, [again_twin]) == ["ready"]
    take_one(store)
    store.redrive([parent], force=True)
    assert states(store, [child, timed, twin]) == ["blocked"] * 3
    assert [enqueue(store), enqueue(store, "twin", during=WAITING)] == [child, twin]
    factory.check()


@ON_POSTGRESQL
def test_a_key_that_a_restored_child_wants_is_locked_like_that_of_a_new_job(factory, store):
    """Another program enqueues the key in an open transaction: the redrive waits for its end, and then sees its job."""
    (parent,) = put(store, "mail")
    child = enqueue(store, after=(parent,))
    store.settle([dead(take_one(store))])
    other = factory.joined("two")
    with other.transaction():
        new = enqueue(other)
        thread = beside(factory, lambda: store.redrive([parent], force=True))
    thread.join()
    assert states(store, [parent, child, new]) == ["ready", "cancelled", "ready"]
