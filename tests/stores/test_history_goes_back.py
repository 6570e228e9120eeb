"""A store goes back in time under a running supervisor: a backup is restored, or a standby that lagged behind is promoted.

Then ids and counts of claims come again, for other jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from supervisor.jobs import Lease, Outcome, Policy
from supervisor.stores.codes import READY
from supervisor.stores.fencing import random_part
from supervisor.stores.protocol import Store
from supervisor.stores.records import ClaimRequest, Presence
from tests.stores.factories import (
    TTL,
    StoreFactory,
    again,
    dead,
    dead_letters,
    make_dead,
    put,
    release,
    state_of,
    success,
    take_one,
)

pytestmark = pytest.mark.parametrize("factory", ["sqlite", "postgresql"], indirect=True)

BEFORE_THE_CLAIM = f"update {{s}}.jobs set state = {READY}, token = 0, owner = null, lease_until = null"
BEFORE_THE_CLAIM_OF_THE_DEAD_LETTER = "update {s}.dead_letters set token = 0, tries = 0, owner = null, due_at = 0"


@pytest.fixture
def durable(factory: StoreFactory) -> Any:
    factory.random_part = random_part
    return factory


def claimed_twice(factory: Any) -> tuple[Store, Lease, Lease]:
    """Return a supervisor's store, its lease of the lost time, and the lease of another supervisor that has the id now."""
    ours, theirs = factory.joined("ours"), factory.joined("theirs")
    put(ours)
    lost = take_one(ours)
    factory.sql(BEFORE_THE_CLAIM)
    return ours, lost, take_one(theirs)


@pytest.mark.parametrize("make", [success, again, dead, release])
def test_an_outcome_of_the_lost_time_settles_no_job(durable: Any, make: Callable[[Lease], Outcome]) -> None:
    ours, lost, held = claimed_twice(durable)
    before = ours.get(held.id)
    assert lost.id == held.id
    assert ours.settle([make(lost)]) == [lost.id]
    assert ours.get(held.id) == before


def test_a_lease_of_the_lost_time_is_not_extended(durable: Any) -> None:
    ours, lost, held = claimed_twice(durable)
    assert ours.extend([lost], TTL, [lost]) == [held.id]
    assert ours.held() == []


def test_the_supervisor_itself_may_claim_the_job_again_and_settles_it_under_the_new_token_only(durable: Any) -> None:
    ours = durable.joined("ours")
    put(ours)
    lost = take_one(ours)
    durable.sql(BEFORE_THE_CLAIM)
    held = take_one(ours)
    assert ours.settle([success(lost)]) == [lost.id]
    assert state_of(ours, held.id) == "in_flight"
    assert ours.settle([success(held)]) == []


def test_a_dead_letter_of_the_lost_time_is_not_marked_as_accepted(durable: Any) -> None:
    ours, theirs = durable.joined("ours"), durable.joined("theirs")
    make_dead(ours)
    (lost,) = dead_letters(ours)
    durable.sql(BEFORE_THE_CLAIM_OF_THE_DEAD_LETTER)
    (held,) = dead_letters(theirs)
    assert ours.mark_accepted([lost], "file") == [lost.id]
    assert theirs.mark_accepted([held], "file") == []


def test_an_owner_whose_id_is_that_of_another_now_joins_again_under_a_new_one(factory, store, caplog):
    put(store)
    take_one(store)
    factory.sql("update {s}.supervisors set owner = 'another'")
    for _ in range(2):
        store.announce(Presence("running"))
    rows = dict(factory.sql("select owner, id from {s}.supervisors"))
    assert (rows["another"], rows["one"] > 1) == (1, True)
    assert caplog.text.count("joined again under a new id") == 1
    assert store.held() == [], "the lease is of the owner that has this id in the restored store"
    put(store)
    lease = take_one(store)
    assert store.held() == [(lease.id, lease.token)]


def test_an_owner_that_was_forgotten_keeps_its_leases_and_the_next_owner_gets_another_id(factory, store):
    put(store)
    lease = take_one(store)
    factory.sql("delete from {s}.supervisors")
    store.announce(Presence("running"))
    assert store.held() == [(lease.id, lease.token)]
    other = factory.joined("two")
    assert other.held() == []
    assert {row["owner"] for row in other.stats()["supervisors"]} == {"one", "two"}


def test_an_announcement_that_is_rolled_back_changes_no_id(factory, store):
    put(store)
    lease = take_one(store)
    factory.sql("delete from {s}.supervisors")
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.announce(Presence("running"))
        raise ZeroDivisionError
    store.announce(Presence("running"))
    assert store.held() == [(lease.id, lease.token)]


def test_a_policy_of_the_lost_time_is_not_taken_for_another(durable: Any) -> None:
    """A supervisor remembers which policies the store has."""
    ours, theirs = durable.joined("ours"), durable.joined("theirs")
    put(ours, "a", "a")
    durable.save()
    seven, one = (lambda *_, retries=retries: Policy(retries) for retries in (7, 1))
    request = [ClaimRequest("default", 1, 1, 1, 100)]
    ours.claim(request, TTL, seven)
    durable.go_back()
    theirs.claim(request, TTL, one)
    (lease,) = ours.claim(request, TTL, seven)
    job = theirs.get(lease.id)
    assert job is not None and job["max_retries"] == 7
