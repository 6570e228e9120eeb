from __future__ import annotations

import pytest

from supervisor.errors import StoreError
from supervisor.jobs import Cause, Kind, Outcome
from supervisor.text.printable import printable
from tests.stores.factories import (
    POLICY,
    again,
    dead,
    failure,
    next_due,
    promote,
    put,
    release,
    state_of,
    states,
    success,
    take,
    take_one,
)


def test_a_success_is_written_with_its_result_and_times(factory, store):
    (id,) = put(store)
    lease = take_one(store)
    factory.clock.step(2)
    assert store.settle([success(lease, '{"n":1}', took=1.5)]) == []
    job = store.get(id)
    assert (job["state"], job["result"], job["errors"]) == ("succeeded", {"n": 1}, [])
    assert (job["started_at"], job["finished_at"]) == ("2023-11-14T22:13:20.500000Z", "2023-11-14T22:13:22.000000Z")
    assert store.held() == []


def test_a_failed_attempt_is_scheduled_again(factory, store):
    (id,) = put(store)
    assert store.settle([again(take_one(store), delay=1.5)]) == []
    job = store.get(id)
    assert (job["state"], job["retries"], job["attempt"]) == ("scheduled", 1, 2)
    assert job["due_at"] == "2023-11-14T22:13:21.500000Z"
    assert [(error["attempt"], error["cause"], error["at"]) for error in job["errors"]] == [
        (1, "exception", "2023-11-14T22:13:20.000000Z")
    ]
    factory.clock.step(1.5)
    promote(store, 10)
    lease = take_one(store)
    assert (lease.retries, lease.attempt, lease.tier, lease.due_at) == (1, 2, 1, factory.clock.microseconds)


def test_a_failed_attempt_has_the_start_that_its_worker_measured(factory, store):
    (id,) = put(store)
    lease = take_one(store)
    factory.clock.step(2)
    assert store.settle([again(lease)._replace(took=1.5)]) == []
    assert store.get(id)["started_at"] == "2023-11-14T22:13:20.500000Z"


def test_an_exhausted_job_without_dead_letters_is_failed(store):
    (id,) = put(store)
    store.settle([dead(take_one(store), dead_letter=False)])
    job = store.get(id)
    assert (job["state"], job["dead_letter"], len(job["errors"])) == ("failed", None, 1)
    assert job["finished_at"] is not None


def test_a_release_counts_nothing(store):
    (id,) = put(store)
    store.settle([release(take_one(store))])
    job = store.get(id)
    assert (job["state"], job["retries"], job["errors"]) == ("ready", 0, [])


def test_a_release_for_later_keeps_tier_and_order(factory, store):
    first, second = put(store, "a", "b")
    store.settle([release(take_one(store), delay=30.0)])
    assert state_of(store, first) == "scheduled"
    assert next_due(store) == 30.0
    factory.clock.step(30)
    promote(store, 10)
    leases = take(store)
    assert [(lease.id, lease.tier) for lease in leases] == [(first, 0), (second, 0)]


def test_outcomes_of_every_kind_are_settled_in_one_batch(store):
    ids = put(store, *"abcd")
    a, b, c, d = take(store)
    assert store.settle([success(a), again(b), dead(c), release(d)]) == []
    assert states(store, ids) == ["succeeded", "scheduled", "failed", "ready"]


@pytest.mark.parametrize("make", [success, again, dead, release])
def test_an_old_token_changes_nothing(store, make):
    (id,) = put(store)
    old = take_one(store)
    store.settle([release(old)])
    take_one(store)
    before = store.get(id)
    assert store.settle([make(old._replace(token=0))]) == [id]
    assert store.get(id) == before


@pytest.mark.parametrize("make", [success, again, dead, release])
def test_a_settle_repeated_under_its_own_token_is_success_and_changes_nothing(store, make):
    (id,) = put(store)
    lease = take_one(store)
    store.settle([make(lease)])
    before, counts = store.get(id), store.stats()
    assert store.settle([make(lease)]) == []
    assert store.settle([success(lease)]) == []
    assert (store.get(id), store.stats()) == (before, counts)


def test_a_settle_repeated_after_the_next_claim_is_success_still(store):
    (id,) = put(store)
    lease = take_one(store)
    store.settle([release(lease)])
    take_one(store)
    assert store.settle([release(lease)]) == []
    assert state_of(store, id) == "in_flight"


def test_only_the_stale_outcomes_of_a_batch_are_refused(store):
    ids = put(store, *"abcd")
    good, cancelled, deleted, repeated = take(store)
    store.cancel([cancelled.id, deleted.id])
    store.delete([deleted.id])
    store.settle([success(repeated)])
    outcomes = [success(lease) for lease in (good, cancelled, deleted, repeated)]
    assert store.settle(outcomes) == [cancelled.id, deleted.id]
    assert states(store, [ids[0], ids[1], ids[3]]) == ["succeeded", "cancelled", "succeeded"]
    (queue,) = store.stats()["queues"]
    assert queue["in_flight"] == 0


def test_stale_failures_leave_neither_record_nor_dead_letter(store):
    ids = put(store, "a", "b")
    good, stale = take(store)
    store.cancel([stale.id])
    assert store.settle([dead(good), dead(stale)]) == [stale.id]
    assert store.get(stale.id)["errors"] == []
    assert [dead_letter.id for dead_letter in store.claim_dead_letters(10, 5.0)] == [ids[0]]


def test_one_job_twice_in_a_batch_is_settled_once(store):
    (id,) = put(store)
    lease = take_one(store)
    assert store.settle([again(lease), again(lease)]) == []
    job = store.get(id)
    assert (job["retries"], len(job["errors"])) == (1, 1)
    (queue,) = store.stats()["queues"]
    assert (queue["in_flight"], queue["scheduled"]) == (0, 1)


def test_the_first_of_two_outcomes_of_a_job_in_a_batch_counts(store):
    succeeded, failed = put(store, "a", "b")
    a, b = take(store)
    assert store.settle([success(a, "1"), again(b), success(a, "2"), dead(b)]) == []
    assert store.get(succeeded)["result"] == 1
    assert (state_of(store, failed), store.get(failed)["dead_letter"]) == ("scheduled", None)


def test_a_deadline_that_was_seen_must_still_stand(factory, store):
    (id,) = put(store)
    lease = take_one(store)
    assert store.settle([success(lease)._replace(seen=1)]) == [id]
    deadline = factory.clock.microseconds + 30_000_000
    assert store.settle([success(lease)._replace(seen=deadline)]) == []
    assert state_of(store, id) == "succeeded"


def test_an_outcome_must_have_been_decided(store):
    put(store)
    with pytest.raises(StoreError, match="decided"):
        store.settle([Outcome(take_one(store), Kind.FAILED)])


def test_all_details_of_a_failure_are_kept(store):
    (id,) = put(store)
    lease = take_one(store)
    known = failure(
        lease, Cause.CRASH, exit_code=None, signal="SIGKILL", peak_memory=123, oom_suspected=True, heartbeat_age=0.5,
        stack="here", stderr="bye", host="h", pid=7, at=1_000_000,
    )  # fmt: skip
    store.settle([dead(lease)._replace(failure=known)])
    (error,) = store.get(id)["errors"]
    assert error == {
        "cause": "crash", "type": "ValueError", "message": "no", "traceback": "Traceback", "attempt": 1,
        "at": "1970-01-01T00:00:01.000000Z", "exit_code": None, "signal": "SIGKILL", "peak_memory": 123,
        "oom_suspected": True, "heartbeat_age": 0.5, "stack": "here", "stderr": "bye", "host": "h", "pid": 7,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["a\x00b", "\udc80", "é" * 5])
def test_texts_that_a_store_cannot_hold_are_escaped(store, text):
    (id,) = put(store)
    lease = take_one(store)
    hurt = failure(lease)
    for key in ("type", "message", "traceback", "stack", "stderr", "host"):
        object.__setattr__(hurt, key, text)
    assert store.settle([dead(lease)._replace(failure=hurt)]) == []
    (error,) = store.get(id)["errors"]
    assert {error[key] for key in ("type", "message", "traceback", "stack", "stderr", "host")} == {printable(text)}


def test_long_texts_are_cut_but_keep_their_beginning_and_end(store):
    (id,) = put(store)
    lease = take_one(store)
    long = "begin" + "é" * 100_000 + "end"
    store.settle([dead(lease, stack=long, stderr=long)])
    (error,) = store.get(id)["errors"]
    for key in ("stack", "stderr"):
        kept = error[key]
        assert len(kept.encode()) <= 16 * 1024
        assert kept.startswith("begin") and kept.endswith("end") and "bytes cut" in kept


def test_a_long_history_keeps_its_first_and_its_newest_attempts(factory, store):
    (id,) = put(store)
    for _ in range(60):
        store.settle([again(take_one(store), delay=1.0)])
        factory.clock.step(1)
        promote(store, 1)
    attempts = [error["attempt"] for error in store.get(id)["errors"]]
    assert attempts == [1, *range(12, 61)]


def test_the_result_of_a_job_is_shown_as_it_was_given(store):
    (id,) = put(store)
    store.settle([success(take_one(store), '["a\\u0000b",1.5,null]')])
    assert store.get(id)["result"] == ["a\x00b", 1.5, None]


def test_a_policy_stays_in_the_row(store):
    put(store)
    lease = take_one(store)
    store.settle([release(lease)])
    assert store.get(lease.id)["max_retries"] == POLICY.max_retries
