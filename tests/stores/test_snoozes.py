"""A job that snoozes is scheduled again without a retry, and its store counts how often."""

from __future__ import annotations

import pytest

from supervisor.jobs import Cause, Failure, JobState, Kind, Lease, Outcome, SnoozeLimit
from tests.stores.factories import IN_SQL, again, dead, make_retries, promote, put, success, take, take_one

LIMIT = SnoozeLimit(1000, None, Failure(Cause.EXCEPTION))


def snoozed(lease: Lease, delay: float = 30.0) -> Outcome:
    return Outcome(lease, Kind.SNOOZED, retry_after=delay, snooze=LIMIT, state=JobState.SCHEDULED, delay=delay)


def snoozes(store, *ids) -> dict[int, int]:
    """Return how often these jobs have snoozed, without those that never have."""
    return {id: job["snoozes"] for id in ids if (job := store.get(id)) and job["snoozes"]}


def snooze(store, factory, delay: float = 30.0) -> Lease:
    """Let the only job that is ready snooze until it is ready again."""
    lease = take_one(store)
    assert store.settle([snoozed(lease, delay)]) == []
    factory.clock.step(delay)
    assert promote(store, 10) == 1
    return lease


def test_a_snooze_counts_no_retry_and_is_counted(store, factory):
    (id,) = put(store)
    assert (store.get(id)["snoozes"], store.get(id)["snoozed_until"]) == (0, None)
    assert snoozes(store, id) == {}
    store.settle([snoozed(take_one(store))])
    job = store.get(id)
    assert (job["state"], job["retries"], job["attempt"], job["errors"]) == ("scheduled", 0, 1, [])
    assert (job["snoozes"], job["snoozed_until"]) == (1, job["due_at"])
    assert next(store.list_jobs(brief=True))["snoozes"] == 1
    factory.clock.step(29.0)
    assert promote(store, 10) == 0
    factory.clock.step(1.0)
    assert promote(store, 10) == 1
    assert store.get(id)["snoozed_until"] is None
    snooze(store, factory)
    assert snoozes(store, id, id + 1) == {id: 2}
    factory.check()


def test_the_snoozes_before_a_lease_are_found_while_it_is_held(store, factory):
    put(store, "a", "b")
    for _ in range(2):
        leases = take(store)
        assert store.settle([snoozed(lease) for lease in leases[:1]] + [success(lease) for lease in leases[1:]]) == []
        factory.clock.step(30.0)
        promote(store, 10)
    (lease,) = take(store)
    assert store.snoozes([lease]) == {lease.id: 2}
    assert store.snoozes([lease._replace(token=lease.token - 1), lease._replace(id=lease.id + 100)]) == {}
    store.settle([again(lease)])
    assert store.snoozes([lease]) == {}


@IN_SQL
def test_the_count_outlives_the_store(store, factory):
    (id,) = put(store)
    snooze(store, factory)
    store.leave()
    later = factory.joined("two")
    assert snoozes(later, id) == {id: 1}
    snooze(later, factory)
    assert later.get(id)["snoozes"] == 2


def test_a_snoozed_job_keeps_its_place(store, factory):
    first, *_ = put(store, "a", "b", "c")
    lease = take_one(store)
    assert lease.id == first
    store.settle([snoozed(lease)])
    factory.clock.step(30.0)
    promote(store, 10)
    assert take(store, 3)[0].id == first


def test_a_retry_that_snoozes_stays_a_retry(store, factory):
    (id,) = make_retries(factory, store, "a")
    lease = snooze(store, factory)
    later = take_one(store)
    assert (later.id, later.tier, later.retries) == (id, lease.tier, lease.retries) == (id, 1, 1)
    factory.check()


def test_a_snooze_under_an_old_token_is_stale_and_not_counted(store, factory):
    (id,) = put(store)
    lease = take_one(store)
    assert store.settle([snoozed(lease._replace(token=lease.token + 7))]) == [id]
    assert snoozes(store, id) == {}
    assert store.settle([snoozed(lease)]) == []
    assert store.snoozes([lease]) == {}, "it is counted, but not before this lease"
    assert store.settle([snoozed(lease)]) == []  # repeated, since its answer was lost
    assert snoozes(store, id) == {id: 1}


def test_a_batch_may_have_every_kind_of_outcome(store):
    put(store, "a", "b", "c", "d")
    leases = take(store, 4)
    makers = (success, again, dead, snoozed)
    assert store.settle([make(lease) for make, lease in zip(makers, leases, strict=True)]) == []
    assert snoozes(store, *[lease.id for lease in leases[1:]]) == {leases[3].id: 1}


def test_a_job_that_waits_for_its_backoff_does_not_snooze(store, factory):
    (id,) = put(store)
    snooze(store, factory)
    store.settle([again(take_one(store), 60.0)])
    job = store.get(id)
    assert (job["state"], job["snoozes"], job["snoozed_until"]) == ("scheduled", 1, None)


def test_an_operator_ends_a_snooze(store, factory):
    (id,) = put(store)
    store.settle([snoozed(take_one(store))])
    factory.clock.step(1.0)
    assert store.retry([id]).changed == {id: JobState.SCHEDULED}
    job = store.get(id)
    assert (job["state"], job["snoozes"], job["snoozed_until"]) == ("ready", 1, None)


def test_a_job_that_is_made_fresh_has_never_snoozed(store, factory):
    (id,) = put(store)
    snooze(store, factory)
    store.settle([dead(take_one(store))])
    assert store.get(id)["snoozes"] == 1
    store.redrive([id], force=True)
    assert store.get(id)["snoozes"] == 0
    assert snoozes(store, id) == {}


def test_a_snooze_is_not_the_wait_for_a_missing_handler(store):
    (id,) = put(store)
    store.settle([snoozed(take_one(store))])
    assert store.make_due(["mail"], 60.0, 10) == 0
    assert store.get(id)["snoozed_until"] is not None


@IN_SQL
def test_snoozes_are_deleted_with_their_job(store, factory):
    put(store)
    snooze(store, factory)
    lease = take_one(store)
    store.settle([success(lease)])
    store.delete([lease.id])
    assert [*factory.sql("select count(*) from {s}.snoozes")] == [(0,)]


def test_a_transaction_that_fails_counts_no_snooze(store):
    (id,) = put(store)
    lease = take_one(store)
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.settle([snoozed(lease)])
        raise ZeroDivisionError
    assert snoozes(store, id) == {}
    assert store.get(id)["state"] == "in_flight"
