"""The steps of a claim under limits do not grow with the number of jobs that are held back."""

from __future__ import annotations

import pytest

from supervisor.stores.job_limits import JobLimits, Limit
from tests.stores.factories import SqliteFactory, success
from tests.stores.test_limits import claim, put

LIMITS = JobLimits({"other": Limit(running=50)}, {"mail": Limit(running=1)})


@pytest.fixture
def factory(tmp_path):
    factory = SqliteFactory(tmp_path)
    yield factory
    factory.close()


def steps(store, call):
    """Return how many steps of SQLite's machine the call takes."""
    database, count = store.connection._sqlite, 0

    def step():
        nonlocal count
        count += 1

    database.set_progress_handler(step, 1)
    call()
    database.set_progress_handler(None, 0)
    return count


def costs(store, held):
    """Return the steps of a claim of others while `held` jobs are held back, and of one that takes up such a job again."""
    put(store, 1)
    put(store, held)
    (lease,) = claim(store, LIMITS, 1).leases
    while claim(store, LIMITS, 5).held:
        pass
    put(store, 5, "other")
    of_others = steps(store, lambda: claim(store, LIMITS, 5))
    store.settle([success(lease)])
    again = steps(store, lambda: claim(store, LIMITS, 5))
    assert store.stats()["queues"][0]["blocked"] == held - 1
    return of_others, again


def test_a_claim_costs_the_same_however_many_jobs_are_held_back(factory):
    few = costs(factory.joined("one"), 100)
    factory.close()
    factory.path.unlink()
    many = costs(factory.joined("two"), 10_000)
    assert all(cost < 1.2 * before + 100 for before, cost in zip(few, many, strict=True)), (few, many)


def test_one_claim_holds_back_a_limited_number_of_jobs(factory):
    store = factory.joined("one")
    put(store, 10_000)
    claim(store, LIMITS, 1)
    claimed = claim(store, LIMITS, 5)
    assert 0 < claimed.held["default", 0] <= 2000
    assert claimed.more
