"""Several supervisors claim jobs under the same limits at once: none of them sees too few that run, and none waits for another."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial, reduce
from operator import or_

import pytest

from supervisor.errors import StoreContended
from supervisor.jobs import JobState
from supervisor.stores.extras import Extras
from supervisor.stores.job_limits import JobLimits, Limit
from supervisor.stores.records import ClaimRequest, EnqueueRow
from tests.stores.at_once import all_at_once
from tests.stores.factories import IN_SQL, ON_POSTGRESQL, TTL, again, release, resolve, success

MINUTE = 60_000_000
LIMITS = JobLimits({"q": Limit(running=5)}, {"a": Limit(running=2), "b": Limit(running=3, claims=1000, per=MINUTE)})
JOBS = 150


GROUPS = JobLimits({"q": Limit(running=5)}, {"b": Limit(running=3)}, {"q": Limit(running=2, claims=1000, per=MINUTE)})


def put(store, handler, n, queue="q", group=None):
    extras = None if group is None else Extras(group=group)
    return store.enqueue([EnqueueRow(handler, "{}", queue=queue, extras=extras) for _ in range(n)])


def claim(store, limits, n=10, queue="q", room=100):
    with store.transaction():
        allowance = store.allowance(limits, None)
        requests = allowance.asked([ClaimRequest(queue, n, n, n, 100)], room)
        return store.claim_limited(requests, TTL, resolve, allowance, room)


def in_flight(store):
    """Count the jobs that are in flight by queue and by handler, as one query finds them."""
    found = store.list_jobs(state=JobState.IN_FLIGHT, brief=True, limit=JOBS)
    jobs = [job for job in found if job["state"] == "in_flight"]
    return Counter(job[key] for job in jobs for key in ("queue", "handler", "group"))


@IN_SQL
@pytest.mark.parametrize("limits", [LIMITS, GROUPS], ids=["handlers", "groups"])
def test_no_more_than_the_limit_run_though_all_claim_at_once(factory, store, limits):
    ids = [id for handler in "abc" for n in range(3) for id in put(store, handler, JOBS // 3, group=f"group {n}")]
    stores = [factory.joined(f"owner {n}") for n in range(4)]
    seen, left = [], set(ids)

    def work(own, choice):
        while left:
            try:
                leases = claim(own, limits, choice.randint(1, 6)).leases
            except StoreContended:
                continue
            seen.append(in_flight(own))
            ends = [choice.choice((success, success, release, again)) for _ in leases]
            own.settle([end(lease) for end, lease in zip(ends, leases, strict=True)])
            left.difference_update(lease.id for end, lease in zip(ends, leases, strict=True) if end is not release)

    def guarded(own, seed):
        try:
            work(own, random.Random(seed))
        except BaseException:
            left.clear()
            raise

    all_at_once(*(partial(guarded, own, seed) for seed, own in enumerate(stores)))
    most = reduce(or_, seen)
    assert most["q"] <= 5 and most["b"] <= 3
    if limits is LIMITS:
        assert most["a"] <= 2
    else:
        assert all(most[f"group {n}"] <= 2 for n in range(3))
    assert store.remaining(None, 0) == {}


@ON_POSTGRESQL
@pytest.mark.parametrize(
    "limits",
    [
        JobLimits({"q": Limit(running=1)}, {}),
        JobLimits({}, {"a": Limit(running=1)}),
        JobLimits({}, {}, {"q": Limit(running=1)}),
    ],
)
def test_a_claim_that_is_not_committed_counts(factory, store, limits):
    put(store, "a", 3, group="g")
    other = factory.joined("two")
    with store.transaction():
        (lease,) = claim(store, limits).leases
        assert claim(other, limits).leases == []
    assert claim(other, limits).leases == []
    store.settle([success(lease)])
    assert len(claim(other, limits).leases) == 1


@ON_POSTGRESQL
def test_a_session_that_holds_a_limit_keeps_no_other_job_from_being_claimed(factory, store):
    limits = JobLimits({}, {"a": Limit(running=2)})
    held = put(store, "a", 3)
    others = put(store, "b", 3)
    other = factory.joined("two")
    with store.transaction():
        assert len(claim(store, limits, 1).leases) == 1
        claimed = claim(other, limits)
        assert [lease.id for lease in claimed.leases] == others
        assert claimed.busy and not claimed.held
    assert len([id for id in held if store.get(id)["state"] == "blocked"]) == 0


@ON_POSTGRESQL
def test_a_session_that_holds_the_limit_of_a_group_keeps_no_other_job_from_being_claimed(factory, store):
    limits = JobLimits({}, {}, {"q": Limit(running=2)})
    other = factory.joined("two")
    put(store, "a", 1, group="g")
    other.settle([success(lease) for lease in claim(other, limits).leases])
    held = put(store, "a", 3, group="g")
    others = put(store, "a", 3, group="h")
    with store.transaction():
        assert len(claim(store, limits, 1).leases) == 1
        claimed = claim(other, limits)
        assert [lease.id for lease in claimed.leases] == others[:2]
        assert claimed.busy
    assert len([id for id in held if store.get(id)["state"] == "blocked"]) == 0


@ON_POSTGRESQL
def test_a_lease_that_ends_while_a_claim_closes_its_line_is_not_missed(factory, store):
    limits = JobLimits({}, {}, {"q": Limit(running=1)})
    _, second = put(store, "a", 2, group="g")
    other = factory.joined("two")
    (lease,) = claim(store, limits).leases
    claim(store, limits)
    claim(other, limits)
    put(store, "a", 1, group="g")
    with store.transaction():
        assert claim(store, limits).held.total() == 1
        other.settle([success(lease)])
        assert claim(other, limits).leases == []
    assert [lease.id for lease in claim(other, limits).leases] == [second]
