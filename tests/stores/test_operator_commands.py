from __future__ import annotations

import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.jobs import JobState
from supervisor.stores.records import PruneRun
from tests.stores.factories import (
    again,
    dead,
    dead_letters,
    make_dead,
    promote,
    put,
    state_of,
    states,
    success,
    take,
    take_one,
    waiting,
)

DAY = 86_400.0


@pytest.fixture
def one_of_each(factory, store):
    """A job in every state."""
    (scheduled,) = put(store, delay=1000.0)
    jobs = dict(zip(("succeeded", "failed", "in_flight"), put(store, *"abc"), strict=True))
    succeeded, failed, _ = take(store)
    store.settle([success(succeeded), dead(failed, dead_letter=False)])
    (ready,), (cancelled,) = put(store), put(store)
    store.cancel([cancelled])
    return jobs | {"scheduled": scheduled, "ready": ready, "cancelled": cancelled}


def test_each_job_is_in_its_state(store, one_of_each):
    assert {state: state_of(store, id) for state, id in one_of_each.items()} == {state: state for state in one_of_each}


def test_waiting_and_running_jobs_are_cancelled_and_finished_ones_refused(store, one_of_each):
    done, refused = store.cancel([*one_of_each.values(), 999])
    assert set(done) == {one_of_each[state] for state in ("scheduled", "ready", "in_flight")}
    assert set(states(store, done)) == {"cancelled"}
    assert refused[one_of_each["succeeded"]] == "already succeeded"
    assert refused[999] == "no such job"
    assert waiting(store) == {}
    assert store.held() == []


def test_the_outcome_of_a_cancelled_job_is_stale(store):
    (id,) = put(store)
    lease = take_one(store)
    store.cancel([id])
    assert store.settle([success(lease)]) == [id]
    assert store.extend([lease], 30.0, []) == [id]
    assert store.get(id)["finished_at"] is not None
    store.retry([id])
    assert take_one(store).token == lease.token + 2


def test_jobs_are_deleted_unless_they_are_in_flight(store, one_of_each):
    done, refused = store.delete(list(one_of_each.values()))
    assert refused == {one_of_each["in_flight"]: "in flight: cancel it first"}
    assert len(done) == 5
    assert [job["state"] for job in store.list_jobs()] == ["in_flight"]
    (queue,) = store.stats()["queues"]
    assert (queue["queue_size"], queue["scheduled"], queue["failed"], queue["in_flight"]) == (0, 0, 0, 1)


def test_scheduled_jobs_become_due_and_failed_ones_fresh(factory, store, one_of_each):
    done, refused = store.retry(list(one_of_each.values()))
    assert done == {one_of_each[state]: state for state in ("scheduled", "failed", "cancelled")}
    assert set(states(store, done)) == {"ready"}
    assert set(refused) == {one_of_each[state] for state in ("ready", "in_flight", "succeeded")}
    assert store.get(one_of_each["scheduled"])["due_at"] == "2023-11-14T22:13:20.000000Z"


def test_a_succeeded_job_is_repeated_only_by_force(store, one_of_each):
    id = one_of_each["succeeded"]
    done, refused = store.retry([id])
    assert (done, refused[id]) == ({}, "succeeded: its work is done (--force to do it again)")
    assert state_of(store, id) == "succeeded"
    assert store.retry([id], force=True) == ({id: "succeeded"}, {})
    assert (state_of(store, id), store.get(id)["result"]) == ("ready", None)


def test_a_retry_made_due_now_stays_a_retry(store):
    (id,) = put(store)
    store.settle([again(take_one(store), delay=1000.0)])
    store.retry([id])
    lease = take_one(store)
    assert (lease.tier, lease.retries) == (1, 1)


@pytest.mark.parametrize("force", [False, True])
def test_only_dead_letters_are_redriven(store, one_of_each, force):
    before = {id: store.get(id) for id in one_of_each.values()}
    done, refused = store.redrive(list(one_of_each.values()), force=force)
    assert (done, set(refused)) == ({}, set(one_of_each.values()))
    for state in ("succeeded", "failed", "cancelled"):
        assert refused[one_of_each[state]].startswith(f"{state}, not a dead letter (supervisor jobs retry")
    assert {id: store.get(id) for id in one_of_each.values()} == before


def test_a_redriven_job_starts_over_and_keeps_its_history(factory, store):
    (id,) = put(store)
    store.settle([again(take_one(store), delay=0.0)])
    promote(store, 1)
    store.settle([dead(take_one(store))])
    store.mark_accepted(dead_letters(store), "file")
    factory.clock.step(5)
    assert store.redrive([id]) == ({id: "failed"}, {})
    job = store.get(id)
    assert (job["state"], job["retries"], job["attempt"], len(job["errors"])) == ("ready", 0, 1, 2)
    assert (job["finished_at"], job["started_at"], job["result"]) == (None, None, None)
    lease = take_one(store)
    assert (lease.tier, lease.retries, lease.token) == (0, 0, 3)
    assert store.settle([success(lease)]) == []


@pytest.mark.parametrize("command", ["retry", "redrive", "delete"])
def test_a_pending_dead_letter_is_dropped_only_by_force(store, command):
    (id,) = make_dead(store)
    done, refused = getattr(store, command)([id])
    assert done == {} and "pending" in refused[id] and "--force" in refused[id]
    assert getattr(store, command)([id], force=True) == ({id: "failed"}, {})
    assert dead_letters(store) == []


def test_redrive_and_purge_of_all_mean_the_dead_letters(store):
    delivered, pending = make_dead(store, "a", "b")
    (plain,) = make_dead(store, "c", dead_letter=False)
    store.mark_accepted([dead_letter for dead_letter in dead_letters(store) if dead_letter.id == delivered], "file")
    done, refused = store.redrive(None)
    assert (list(done), list(refused)) == ([delivered], [pending])
    done, refused = store.purge()
    assert (list(done), list(refused)) == ([], [pending])
    assert store.purge(force=True) == ({pending: "failed"}, {})
    assert states(store, [delivered, plain]) == ["ready", "failed"]
    assert store.purge() == ({}, {})


def test_jobs_behind_many_with_pending_dead_letters_are_pruned_by_a_later_call_of_the_same_run(factory, store):
    """A call passes over a limited number of them, so that no other call waits for long."""
    for _ in range(3):
        make_dead(store, *["mail"] * 1000)
    factory.clock.step(1)
    (last,) = make_dead(store, dead_letter=False)
    factory.clock.step(1)
    run, pruned, calls = PruneRun(), 0, 0
    while run.more:
        pruned, calls = pruned + store.prune(RetentionSettings(failed=0.5), 100, run), calls + 1
    assert (pruned, store.get(last)) == (1, None)
    assert (calls > 1) == factory.durable
    assert len([*store.list_jobs(limit=5000)]) == 3000


def test_a_run_that_prunes_as_many_as_it_may_goes_on_where_it_was(factory, store):
    for _ in range(2):
        make_dead(store, *["mail"] * 10, dead_letter=False)
        make_dead(store)
    factory.clock.step(1)
    run = PruneRun()
    assert [store.prune(RetentionSettings(failed=0.5), 8, run) for _ in range(3)] == [8, 8, 4]
    assert not run.more
    assert store.prune(RetentionSettings(failed=0.5), 8, run) == 0, "it has ended"


def test_ids_given_twice_are_done_once(store):
    (id,) = put(store)
    assert store.cancel([id, id]) == ({id: "ready"}, {})


def test_pruning_deletes_jobs_past_their_retention_and_no_others(factory, store, one_of_each):
    (kept,) = make_dead(store)
    factory.clock.step(DAY)
    assert store.prune(RetentionSettings(succeeded=DAY + 1, cancelled=None, failed=None), 100) == 0
    assert store.prune(RetentionSettings(succeeded=DAY, cancelled=None, failed=None), 100) == 1
    assert store.get(one_of_each["succeeded"]) is None
    assert store.prune(RetentionSettings(succeeded=1.0, cancelled=1.0, failed=1.0), 100) == 2
    assert state_of(store, kept) == "failed"
    (queue,) = store.stats()["queues"]
    assert queue["failed"] == 1


def test_jobs_kept_for_no_time_are_pruned_at_the_moment_they_ended(factory, store, one_of_each):
    (pending,) = make_dead(store)
    at_once = RetentionSettings(succeeded=0.0, cancelled=0.0, failed=0.0)
    assert store.prune(RetentionSettings(succeeded=0.0, cancelled=None, failed=None), 100) == 1
    assert store.get(one_of_each["succeeded"]) is None
    assert store.prune(at_once, 100) == 2
    assert {job["id"] for job in store.list_jobs()} == {
        pending, *(one_of_each[state] for state in ("scheduled", "ready", "in_flight"))
    }  # fmt: skip
    (dead_letter,) = dead_letters(store)
    assert store.prune(at_once, 100) == 0, "it is being delivered"
    store.mark_accepted([dead_letter], "file")
    assert store.prune(at_once, 100) == 1
    assert store.stats()["queues"][0]["failed"] == 0
    factory.check()


def test_an_outcome_repeated_after_its_job_was_dropped_changes_nothing(factory, store):
    (id,) = put(store)
    lease = take_one(store)
    assert store.settle([success(lease)]) == []
    assert factory.joined("two").prune(RetentionSettings(succeeded=0.0), 100) == 1
    assert store.settle([success(lease)]) == [id]
    assert store.recover([]) == [] and [*store.list_jobs()] == [] and store.remaining(None, None) == {}
    factory.check()


def test_pruning_is_bounded_and_starts_with_the_job_that_ended_first(factory, store):
    ids = put(store, *"abc")
    for lease in reversed(take(store)):
        store.settle([success(lease)])
        factory.clock.step(1)
    factory.clock.step(DAY)
    assert store.prune(RetentionSettings(), 2) == 2
    assert [store.get(id) is None for id in ids] == [False, True, True]


@pytest.mark.parametrize("command", ["cancel", "retry", "redrive", "delete"])
def test_a_command_notifies(factory, store, command):
    other = factory.joined("two")
    put(store)
    getattr(other, command)([1])
    assert factory.notified(store)


def test_pausing_notifies(factory, store):
    factory.joined("two").pause("default", True)
    assert factory.notified(store)


def test_jobs_that_have_changed_since_they_were_found_are_refused(store):
    changed, retried, deleted = make_dead(store, "a", "b", "c", dead_letter=False)
    store.retry([changed])
    for command, failed in ((store.retry, retried), (store.delete, deleted)):
        result = command([changed, failed], only=(JobState.FAILED,))
        assert list(result.changed) == [failed]
        assert result.refused == {changed: "not failed any more, but ready"}
    assert store.cancel([changed], only=(JobState.SCHEDULED,)).refused
    assert store.cancel([changed], only=(JobState.READY,)).changed
