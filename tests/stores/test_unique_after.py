"""A job that waits is replaced by one that waits for other jobs, or for none: its parents are those of the new one."""

from __future__ import annotations

import pytest

from supervisor.errors import InvalidJob, NoSuchParent, ParentsInCircle, RowRefused
from supervisor.parents import PARENTS
from supervisor.stores.records import EnqueueRow
from supervisor.text.strict_json import decode
from tests.stores.at_once import beside, insisting
from tests.stores.factories import ON_POSTGRESQL, again, dead, promote, put, states, success, take, take_one
from tests.stores.test_limits import claim
from tests.stores.test_unique import LIMITS, all_ids, enqueue, held_back, row

WITHOUT_KAFKA = "a partition has no jobs that wait for others"


def replace(store, *after, unique="report:42", payload='"new"', **options):
    return enqueue(store, unique, payload, "replace", after=after, **options)


def relatives(store, id):
    job = store.get(id)
    return [parent["id"] for parent in job["parents"]], [child["id"] for child in job["children"]]


def succeed(store, *ids):
    """Let these jobs, which are the only ready ones, succeed."""
    leases = take(store, 100)
    assert [lease.id for lease in leases] == list(ids)
    store.settle([success(lease, result=f"{lease.id}") for lease in leases])


@pytest.mark.parametrize("delay", [None, 60.0])
def test_a_job_that_is_ready_or_scheduled_waits_for_the_new_parents(factory, store, delay):
    first = enqueue(store, delay=delay)
    parent, other = put(store, "a", "b")
    assert replace(store, parent, other) == first
    factory.check()
    assert states(store, [first]) == ["blocked"] and store.get(first)["after"] == [parent, other]
    assert relatives(store, first)[0] == [parent, other] and relatives(store, parent) == ([], [first])
    succeed(store, parent, other)
    lease = take_one(store)
    assert (lease.id, lease.payload) == (first, '"new"')
    assert decode(lease.headers)[PARENTS]["ids"] == [parent, other]
    factory.check()


def test_parents_that_have_ended_are_not_waited_for(factory, store):
    (parent,) = put(store, "a")
    succeed(store, parent)
    first = enqueue(store)
    assert replace(store, parent) == first
    lease = take_one(store)
    assert (lease.id, decode(lease.headers)[PARENTS]["results"]) == (first, [f"{parent}"])
    factory.check()


def test_a_job_with_parents_waits_for_the_new_ones_only(factory, store):
    old, new = put(store, "a", "b")
    first = enqueue(store, after=(old,))
    assert replace(store, new, delay=60.0) == first
    assert relatives(store, first)[0] == [new] and relatives(store, old) == ([], [])
    store.settle([dead(lease) if lease.id == old else success(lease) for lease in take(store)])
    assert states(store, [first]) == ["scheduled"]
    factory.clock.step(60)
    promote(store, 10)
    assert take_one(store).id == first
    store.delete([old], force=True)
    factory.check()


@pytest.mark.parametrize("ended", [False, True])
def test_a_job_without_parents_replaces_one_that_has_some(factory, store, ended):
    (parent,) = put(store, "a", priority=1)
    first = enqueue(store, after=(parent,))
    if ended:
        succeed(store, parent)
    assert replace(store) == first
    assert states(store, [first]) == ["ready"] and store.get(first)["after"] == []
    assert relatives(store, first)[0] == [] and relatives(store, parent) == ([], [])
    lease = next(lease for lease in take(store) if lease.id == first)
    assert (lease.payload, lease.headers) == ('"new"', None)
    factory.check()


@pytest.mark.parametrize(
    ("on_parent_failed", "state"), [("cancel", "cancelled"), ("run", "ready"), ("wait", "blocked")]
)
@pytest.mark.parametrize("before", [False, True])
def test_the_new_job_says_what_happens_if_a_parent_fails(factory, store, on_parent_failed, state, before):
    old, new = put(store, "a", "b")
    first = enqueue(store, after=(old,), on_parent_failed="wait" if on_parent_failed == "run" else "run")
    if before:
        store.settle([dead(lease) for lease in take(store) if lease.id == new])
    replace(store, new, on_parent_failed=on_parent_failed)
    if not before:
        store.settle([dead(lease) for lease in take(store) if lease.id == new])
    assert states(store, [first]) == [state]
    factory.check()


def test_a_job_that_has_its_turn_of_its_key_gives_it_up_while_it_waits(factory, store):
    """The new parent is behind it in the line of the key: it would never run otherwise."""
    first, second = enqueue(store, key="account"), enqueue(store, "b", key="account")
    assert states(store, [first, second]) == ["ready", "blocked"]
    store.newly_ready()
    assert replace(store, second) == first
    assert states(store, [first, second]) == ["blocked", "ready"]
    factory.check()
    succeed(store, second)
    assert states(store, [first]) == ["ready"] and store.get(first)["key"] == "account"
    third = enqueue(store, "c", key="account")
    assert states(store, [third]) == ["blocked"]
    succeed(store, first)
    succeed(store, third)


def test_a_job_that_waits_for_its_key_waits_for_parents_instead(factory, store):
    first, second = enqueue(store, "a", key="account"), enqueue(store, key="account")
    third, (parent,) = enqueue(store, "c", key="account"), put(store, "parent", priority=-1)
    assert replace(store, parent) == second
    store.settle([success(take_one(store))])
    assert states(store, [first, second, third]) == ["succeeded", "blocked", "ready"]
    assert relatives(store, second)[0] == [parent]
    store.settle([success(lease) for lease in take(store) if lease.id == parent])
    assert states(store, [second, third]) == ["blocked", "in_flight"]
    (lease,) = store.leases([third])
    store.settle([success(lease)])
    succeed(store, second)
    factory.check()


def test_a_job_with_a_key_leaves_its_parents_for_the_line_of_its_key(factory, store):
    (parent,) = put(store, "parent", priority=-1)
    first = enqueue(store, key="account", after=(parent,))
    second = enqueue(store, "b", key="account")
    assert replace(store) == first
    assert states(store, [first, second]) == ["blocked", "ready"]
    store.settle([success(take_one(store))])
    assert states(store, [first]) == ["ready"]
    factory.check()


@pytest.mark.parametrize("retry", [False, True])
def test_a_job_that_a_limit_holds_back_waits_for_parents(factory, store, retry):
    lease, id = held_back(factory, store, retry)
    (parent,) = put(store, "other")
    assert replace(store, parent) == id
    assert states(store, [id]) == ["blocked"]
    store.settle([success(lease)])
    succeed(store, parent)
    assert [lease.id for lease in claim(store, LIMITS).leases] == [id]
    factory.check()


def test_a_job_that_waits_for_a_retry_waits_for_parents(factory, store):
    first = enqueue(store)
    store.settle([again(take_one(store), delay=60.0)])
    (parent,) = put(store, "a")
    assert replace(store, parent) == first
    succeed(store, parent)
    lease = take_one(store)
    assert (lease.id, lease.attempt, lease.tier) == (first, 1, 0)
    factory.check()


def test_a_job_of_a_group_gives_its_turn_up_while_it_waits(factory, store):
    first, second = enqueue(store, group="a"), enqueue(store, "b", group="a")
    (parent,) = put(store, "parent", priority=1)
    replace(store, parent)
    store.settle([success(take_one(store))])
    third = enqueue(store, "c", group="a")
    assert states(store, [parent, first]) == ["succeeded", "ready"]
    succeed(store, first, second, third)
    factory.check()


@pytest.mark.parametrize("end", [None, success])
def test_a_job_that_runs_or_has_ended_is_not_linked(factory, store, end):
    first = enqueue(store, during=600_000_000)
    lease = take_one(store)
    store.settle([end(lease)] if end else [])
    (parent,) = put(store, "a")
    before = store.get(first)
    assert replace(store, parent) == first
    assert store.get(first) == before and relatives(store, parent) == ([], [])


def test_a_job_and_its_new_parents_are_enqueued_together(factory, store):
    first = enqueue(store)
    new = row(payload='"new"', how="replace", after=(-1, -2))
    ids = store.enqueue([EnqueueRow("a", "{}"), EnqueueRow("b", "{}"), new, row("child", after=(-3,))])
    assert ids[2] == first and states(store, ids) == ["ready", "ready", "blocked", "blocked"]
    succeed(store, *ids[:2])
    succeed(store, first)
    succeed(store, ids[3])
    factory.check()


def test_the_last_row_of_a_batch_for_a_key_has_the_parents(factory, store):
    a, b = put(store, "a", "b")
    for unique in ("there", "new"):
        if unique == "there":
            enqueue(store, unique, after=(a,))
        ids = store.enqueue([row(unique, after=(a,)), row(unique, how="replace", after=(b,))])
        assert relatives(store, ids[0])[0] == [b] and store.get(ids[0])["after"] == [b]
        ids = store.enqueue([row(unique, how="replace", after=(a,)), row(unique, how="replace")])
        assert relatives(store, ids[0])[0] == [] and states(store, ids[:1]) == ["ready"]
        ids = store.enqueue([row(unique, how="replace", after=(a,)), row(unique, after=(b,))])
        assert relatives(store, ids[0])[0] == [a] and states(store, ids[:1]) == ["blocked"]
    factory.check()


def test_a_job_is_not_replaced_by_one_that_would_wait_for_itself(factory, store):
    (a,) = put(store, "a")
    first = enqueue(store, after=(a,))
    child = enqueue(store, "child", after=(first,))
    grandchild = enqueue(store, "grandchild", after=(child,))
    before = store.get(first)
    for after in ([first], [a, child], [grandchild]):
        with pytest.raises(
            ParentsInCircle, match=f"after: job {first}, which is replaced, would wait for itself"
        ) as it:
            store.enqueue([EnqueueRow("b", "{}"), row(how="replace", after=tuple(after))])
        assert isinstance(it.value, InvalidJob) and isinstance(it.value, RowRefused)
    with pytest.raises(ParentsInCircle):
        store.enqueue([row("b", after=(first,)), row(how="replace", after=(-1,))])
    assert store.get(first) == before and len(all_ids(store)) == 4
    store.cancel([child])
    with pytest.raises(ParentsInCircle):
        replace(store, child)
    assert relatives(store, a) == ([], [first])
    assert replace(store, a) == first
    factory.check()


def test_jobs_that_are_replaced_together_are_not_in_a_circle(factory, store):
    (a,) = put(store, "a")
    first, second, third = (enqueue(store, unique) for unique in "xyz")
    rows = [
        row("x", how="replace", after=(a,)),
        row("y", how="replace", after=(first,)),
        row("z", "{}", "replace", after=(-2,)),
    ]
    assert store.enqueue(rows) == [first, second, third]
    succeed(store, a)
    succeed(store, first)
    succeed(store, second)
    succeed(store, third)
    with pytest.raises(RowRefused, match="there is no job 1000"):
        store.enqueue([row("w"), row("w", how="replace", after=(1000,))])
    factory.check()


def test_a_replacement_that_is_undone_leaves_the_parents(factory, store):
    a, b = put(store, "a", "b")
    first = enqueue(store, after=(a,))
    with pytest.raises(RuntimeError), store.transaction():
        replace(store, b)
        raise RuntimeError
    assert relatives(store, first)[0] == [a] and relatives(store, b) == ([], [])
    store.settle([success(lease) for lease in take(store) if lease.id == a])
    assert states(store, [first]) == ["ready"]
    factory.check()


@pytest.mark.parametrize("how", ["skip", "replace"])
def test_a_job_that_is_gone_and_has_its_key_for_a_time_is_named_with_it(factory, store, how):
    gone = enqueue(store, "order 5", during=60_000_000)
    store.delete([gone])
    rows = [row("order 5", how=how, during=60_000_000), row("child", after=(-1,))]
    message = f"after: job {gone}, which has the unique key 'order 5' for some time yet, was deleted or pruned"
    with pytest.raises(NoSuchParent, match=message):
        store.enqueue(rows)
    assert all_ids(store) == []
    factory.clock.step(60)
    assert states(store, store.enqueue(rows)) == ["ready", "blocked"]


@ON_POSTGRESQL
def test_two_programs_that_close_a_circle_at_once(factory, store):
    """Each replaces a job that the other one waits for, through a job between them."""
    other = factory.joined("two")
    first, second = enqueue(store, "x"), enqueue(store, "y")
    after_first, after_second = enqueue(store, "a", after=(first,)), enqueue(store, "b", after=(second,))
    refused = []

    def close_it():
        try:
            insisting(replace, other, after_first, unique="y")
        except ParentsInCircle:
            refused.append(second)

    with store.transaction():
        replace(store, after_second, unique="x")
        thread = beside(factory, close_it)
    thread.join(10)
    assert refused == [second]
    succeed(store, second)
    succeed(store, after_second)
    succeed(store, first)
