"""The end of jobs as those who wait for it see it, in every store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.client.ended_jobs import Wait, ended_jobs
from supervisor.errors import JobFailed, JobNotFound
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import again, dead, make_dead, promote, put, release, success, take, take_one


class Waiting:
    """Waits for jobs of a store; `meanwhile` has what happens at each pause, one by one, and after the last the time is up."""

    def __init__(self, store, *ids, timeout: float = 60.0) -> None:
        self.now = 0.0
        self.meanwhile: list[Callable[[], object]] = []
        self._jobs = ended_jobs(
            lambda question: question(store), Wait(ids, timeout, 30.0, self.now), lambda: self.now, self.pause
        )

    def pause(self, seconds: float) -> None:
        if self.meanwhile:
            self.meanwhile.pop(0)()
            self.now += 0.001
        else:
            self.now += 60.0

    def outcomes(self, *meanwhile: Callable[[], object]) -> dict:
        self.meanwhile = [*meanwhile]
        return {ended.id: ended.outcome for ended in self._jobs}


def test_the_ended_ids_are_those_of_ended_jobs_and_of_none(store):
    scheduled, ready, failed, cancelled, succeeded, deleted = put(store, "s", "a", "b", "c", "d", "e")
    leases = {lease.id: lease for lease in take(store)}
    store.settle(
        [
            again(leases[scheduled]),
            release(leases[ready]),
            dead(leases[failed]),
            success(leases[succeeded]),
            success(leases[deleted]),
        ]
    )
    store.cancel([cancelled])
    store.delete([deleted])
    running = put(store)[0]
    take(store)
    asked = [deleted, succeeded, running, scheduled, 10**15, cancelled, ready, failed]
    assert store.ended(asked) == [deleted, succeeded, 10**15, cancelled, failed]
    assert store.ended([]) == []


def test_many_jobs_are_read_at_once_without_those_that_do_not_exist(store):
    first, second, third = put(store, *"abc")
    store.delete([second])
    count, jobs = store.get_many([third, second, first])
    assert (count, jobs) == (3, [store.get(third), store.get(first)])
    assert store.get_many([second]) == (1, [])


@pytest.mark.parametrize("factory", ["sqlite", "postgresql"], indirect=True)
def test_few_large_jobs_are_read_at_once(store):
    ids = store.enqueue([EnqueueRow("mail", f'"{"x" * 400_000}"')] * 5)
    count, jobs = store.get_many(ids)
    assert count == 2 and [job["id"] for job in jobs] == ids[:2]
    assert store.get_many([ids[0]])[0] == 1


def test_each_kind_of_end_has_its_outcome(store):
    failed, cancelled, succeeded = put(store, "a", "b", "c")
    leases = {lease.id: lease for lease in take(store)}
    store.settle([dead(leases[failed]), success(leases[succeeded], result='{"n": [1]}')])
    store.cancel([cancelled])
    outcomes = Waiting(store, cancelled, 777, succeeded, failed).outcomes()
    assert outcomes[succeeded] == {"n": [1]}
    assert isinstance(outcomes[777], JobNotFound) and not outcomes[777].existed
    error = outcomes[failed]
    assert isinstance(error, JobFailed)
    assert (error.id, error.state, error.cause) == (failed, "failed", "exception")
    assert [attempt["message"] for attempt in error.errors] == ["no"] and error.errors == store.get(failed)["errors"]
    assert str(error) == f"job {failed} (a) failed at attempt 1: exception: ValueError: no"
    error = outcomes[cancelled]
    assert isinstance(error, JobFailed) and (error.state, error.cause) == ("cancelled", None)
    assert str(error) == f"job {cancelled} (b) was cancelled"


def test_a_retry_is_no_end(factory, store):
    (id,) = put(store)

    def fail() -> None:
        store.settle([again(take_one(store), delay=1.0)])

    def run() -> None:
        factory.clock.step(1.0)
        promote(store, 1)
        store.settle([success(take_one(store), result="7")])

    assert Waiting(store, id).outcomes(fail, lambda: None, run) == {id: 7}


def test_a_job_that_an_operator_runs_again_before_its_end_was_seen_is_waited_for(factory, store):
    (id,) = put(store)

    def fail_and_redrive() -> None:
        store.settle([dead(take_one(store))])
        store.retry([id], force=True)

    assert Waiting(store, id).outcomes(
        fail_and_redrive, lambda: store.settle([success(take_one(store), result="1")])
    ) == {id: 1}


def test_a_job_that_an_operator_runs_again_between_the_queries_of_a_look_is_waited_for(store, monkeypatch):
    (id,) = make_dead(store, "mail", dead_letter=False)
    get_many = store.get_many

    def run_again_and_get(ids):
        monkeypatch.undo()
        store.retry(ids)
        return get_many(ids)

    monkeypatch.setattr(store, "get_many", run_again_and_get)
    waiting = Waiting(store, id)
    assert waiting.outcomes(lambda: store.settle([success(take_one(store), result="1")])) == {id: 1}


def test_a_job_that_is_deleted_meanwhile_is_not_found(store):
    (id,) = put(store)
    (outcome,) = Waiting(store, id).outcomes(lambda: store.delete([id])).values()
    assert isinstance(outcome, JobNotFound) and outcome.existed
    assert str(outcome) == f"job {id} was deleted while its end was waited for"


def test_when_the_time_is_up_the_jobs_are_unchanged(store):
    ids = put(store, *"abc")
    store.settle([success(take_one(store))])
    waiting, before = Waiting(store, *ids), store.get(ids[1])
    found = []
    with pytest.raises(TimeoutError, match=rf"^2 of 3 jobs have not ended within 1m: {ids[1]}, {ids[2]}$"):
        found.extend(waiting._jobs)
    with pytest.raises(TimeoutError, match=rf"^job {ids[1]} has not ended within 1m$"):
        Waiting(store, ids[1]).outcomes()
    assert store.get(ids[1]) == before
    assert [ended.id for ended in found] == ids[:1]
