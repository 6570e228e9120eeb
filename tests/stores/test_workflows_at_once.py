"""Parents end while children are added, cancelled and run again, by several programs at once: no child is left behind, or run twice."""

from __future__ import annotations

import random
from functools import partial

import pytest

from supervisor.errors import NoSuchParent
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow
from tests.stores.at_once import all_at_once, beside, insisting
from tests.stores.factories import IN_SQL, ON_POSTGRESQL, dead, release, states, success, take

KINDS = ("cancel", "run", "wait")
STEPS = 60


def row(*after, on_parent_failed="cancel"):
    return EnqueueRow("mail", "{}", extras=Extras(after=after, on_parent_failed=on_parent_failed) if after else None)


def lease_of(store, id):
    leases = {lease.id: lease for lease in take(store, 100)}
    mine = leases.pop(id)
    store.settle([*map(release, leases.values())])
    return mine


@ON_POSTGRESQL
@pytest.mark.parametrize(("end", "state"), [(success, "ready"), (dead, "cancelled")])
def test_a_child_that_is_added_as_its_parent_ends_sees_the_end(factory, store, end, state):
    other, ids = factory.joined("two"), []
    (a,) = store.enqueue([row()])
    lease = lease_of(store, a)
    with store.transaction():
        store.settle([end(lease)])
        thread = beside(factory, lambda: ids.extend(other.enqueue([row(a)])))
    thread.join()
    assert states(store, ids) == [state]


@ON_POSTGRESQL
@pytest.mark.parametrize(("end", "state"), [(success, "ready"), (dead, "cancelled")])
def test_a_parent_that_ends_as_a_child_is_added_sees_the_child(factory, store, end, state):
    other = factory.joined("two")
    (a,) = store.enqueue([row()])
    lease = lease_of(store, a)
    with other.transaction():
        (c,) = other.enqueue([row(a)])
        thread = beside(factory, store.settle, [end(lease)])
    thread.join()
    assert states(store, [a, c]) == ["succeeded" if end is success else "failed", state]


@ON_POSTGRESQL
def test_a_child_that_is_added_to_a_job_that_is_being_cancelled_is_cancelled_too(factory, store):
    other, ids = factory.joined("two"), []
    (a,) = store.enqueue([row()])
    (b,) = store.enqueue([row(a)])
    with store.transaction():
        store.cancel([a])
        thread = beside(factory, lambda: ids.extend(other.enqueue([row(b)])))
    thread.join()
    assert states(store, [b, *ids]) == ["cancelled", "cancelled"]


@ON_POSTGRESQL
def test_a_job_that_is_cancelled_with_its_parent_sees_a_child_that_was_added_before(factory, store):
    other = factory.joined("two")
    (a,) = store.enqueue([row()])
    (b,) = store.enqueue([row(a)])
    with other.transaction():
        (c,) = other.enqueue([row(b)])
        thread = beside(factory, store.cancel, [a])
    thread.join()
    assert states(store, [a, b, c]) == ["cancelled"] * 3


@ON_POSTGRESQL
def test_two_parents_that_end_at_once_let_their_child_go_on_once(factory, store):
    other = factory.joined("two")
    a, b = store.enqueue([row(), row()])
    (c,) = store.enqueue([row(a, b)])
    leases = {lease.id: lease for lease in take(store, 2)}
    with store.transaction():
        store.settle([success(leases[a])])
        thread = beside(factory, other.settle, [success(leases[b])])
    thread.join()
    assert states(store, [a, b, c]) == ["succeeded", "succeeded", "ready"]
    assert (store.newly_ready(), other.newly_ready()) == (frozenset(), {"default"})


@ON_POSTGRESQL
def test_an_end_does_not_wait_for_long_for_a_child_that_somebody_has_locked(factory, store):
    person = factory.joined("two")
    (a,) = store.enqueue([row()])
    c, d = store.enqueue([row(a), row(a)])
    with pytest.raises(RuntimeError), person.transaction():
        person.cancel([d])
        assert states(person, [d]) == ["cancelled"]  # it is sent by now
        assert store.settle([success(lease_of(store, a))]) == []
        assert states(store, [a, c, d]) == ["succeeded", "ready", "blocked"]
        raise RuntimeError
    assert "default" in store.repair()
    assert states(store, [d]) == ["ready"]


@ON_POSTGRESQL
def test_a_parent_is_redriven_while_another_one_ends(factory, store):
    other = factory.joined("two")
    a, b = store.enqueue([row(), row()])
    (c,) = store.enqueue([row(a, b, on_parent_failed="wait")])
    leases = {lease.id: lease for lease in take(store, 2)}
    store.settle([dead(leases[a])])
    with store.transaction():
        store.redrive([a], force=True)
        assert states(store, [a]) == ["ready"]  # it is sent by now
        thread = beside(factory, other.settle, [success(leases[b])])
    thread.join()
    assert states(store, [a, b, c]) == ["ready", "succeeded", "blocked"]
    store.settle([success(lease_of(store, a))])
    assert states(store, [c]) == ["ready"]


@IN_SQL
@pytest.mark.parametrize(
    ("on_parent_failed", "expected"), [("cancel", "cancelled"), ("run", "ready"), ("wait", "cancelled")]
)
def test_parents_that_other_programs_delete_are_found_by_the_repair(factory, store, on_parent_failed, expected):
    (a,) = store.enqueue([row()])
    c, d = store.enqueue([row(a, on_parent_failed=on_parent_failed), row(a + 1)])
    factory.sql(f"delete from {{s}}.jobs where id = {a}")
    assert states(store, [c, d]) == ["blocked", "blocked"]
    store.repair()
    assert states(store, [c]) == [expected]
    assert states(store, [d]) == ["cancelled" if expected == "cancelled" else "blocked"]
    assert store.repair() == ""


@IN_SQL
@pytest.mark.parametrize(("state", "expected"), [(3, "ready"), (4, "cancelled"), (5, "cancelled")])
def test_parents_that_other_programs_end_are_found_by_the_repair(factory, store, state, expected):
    a, b = store.enqueue([row(), row()])
    c, d = store.enqueue([row(a), row(a, b)])
    factory.sql(f"update {{s}}.jobs set state = {state}, finished_at = 0 where id = {a}")
    store.repair()
    assert states(store, [c, d]) == [expected, "blocked" if state == 3 else "cancelled"]


@IN_SQL
def test_all_that_belongs_to_a_child_is_deleted_with_it(factory, store):
    (a,) = store.enqueue([row()])
    c, d = store.enqueue([row(a), row(a)])
    store.delete([c])
    factory.sql(f"delete from {{s}}.jobs where id = {d}")
    assert [*factory.sql("select * from {s}.parents")] == []


@IN_SQL
def test_programs_that_use_the_same_workflows_at_once_leave_no_job_behind(factory, store):
    stores = [factory.joined(f"owner {n}") for n in range(3)]
    known = list(store.enqueue([row() for _ in range(5)]))

    def use(own, choice):
        for _ in range(STEPS):
            _one_step(own, choice, known)

    all_at_once(*(partial(use, own, random.Random(seed)) for seed, own in enumerate(stores)))
    while leases := take(store, 100):
        store.settle([success(lease) for lease in leases])
    while store.repair():
        pass
    while leases := take(store, 100):
        store.settle([success(lease) for lease in leases])
    for job in store.list_jobs(limit=10_000):
        if job["state"] == "blocked":
            waits = [parent for parent in job["parents"] if parent["waits"]]
            assert waits, f"{job['id']} waits for nothing"
            assert all(parent["state"] in ("failed", "cancelled", "blocked") for parent in waits), job
    factory.check()


def _one_step(own, choice, known):
    match choice.randint(0, 9):
        case 0 | 1 | 2:
            parents = sorted({choice.choice(known) for _ in range(choice.randint(0, 3))})
            try:
                known.extend(insisting(own.enqueue, [row(*parents, on_parent_failed=choice.choice(KINDS)), row()]))
            except NoSuchParent:
                pass
        case 3:
            insisting(own.cancel, [choice.choice(known)])
        case 4:
            insisting(own.retry, [choice.choice(known)], force=True)
        case 5:
            insisting(own.delete, [choice.choice(known)], force=True)
        case _:
            leases = insisting(take, own, choice.randint(1, 4))
            insisting(own.settle, [(success if choice.random() < 0.7 else dead)(lease) for lease in leases])
