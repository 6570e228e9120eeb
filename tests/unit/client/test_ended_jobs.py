"""When to look for jobs again, and what a wait makes of a store that is unavailable for a while."""

from __future__ import annotations

import pickle

import pytest

from supervisor import JobFailed, JobNotFound
from supervisor.client.ended_jobs import MAX_LOOK_PAUSE, MAX_PAUSE, PAGE_IDS, Look, Wait, ended_jobs
from supervisor.errors import StoreBroken, StoreUnavailable
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.records import EnqueueRow
from tests.unit.wrapped_store import WrappedStore


class FailingStore(WrappedStore):
    """Raises the `errors` at its first calls."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []

    def ended(self, ids):
        if self.errors:
            raise self.errors.pop(0)
        return self.inner.ended(ids)


class Time:
    def __init__(self) -> None:
        self.now, self.pauses = 100.0, []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def time():
    return Time()


def waiting(store, time, *ids, timeout=None, store_timeout=30.0):
    wait = Wait(ids, timeout, store_timeout, time.now)
    return ended_jobs(lambda question: question(store), wait, time.clock, time.sleep)


def test_pauses_grow_and_the_last_look_is_made_when_the_time_is_up(time):
    store = MemoryStore()
    (id,) = store.enqueue([EnqueueRow("mail", "1")])
    with pytest.raises(TimeoutError, match="job 1 has not ended within 1s"):
        list(waiting(store, time, id, timeout=1))
    assert time.now == 101.0
    assert time.pauses[:5] == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16])
    assert max(time.pauses) <= MAX_PAUSE


def test_a_timeout_of_zero_looks_once(time):
    store = MemoryStore()
    ids = store.enqueue([EnqueueRow("mail", "1")] * 2)
    store.cancel(ids[:1])
    assert [ended.id for ended in waiting(store, time, ids[0], timeout=0)] == ids[:1]
    with pytest.raises(TimeoutError):
        list(waiting(store, time, ids[1], timeout=0))
    assert time.pauses == []


def test_after_a_long_look_the_pause_is_long_too():
    wait = Wait([1], None, 30.0, 0.0)
    assert wait.next_look(0.0, took=0.2) == 0.8
    assert wait.next_look(0.0, took=60.0) == MAX_LOOK_PAUSE
    assert Wait([1], "1.5s", 30.0, 0.0).next_look(0.0, took=60.0) == 1.5


def test_thousands_of_jobs_are_asked_for_by_few_queries(time):
    store, asked = MemoryStore(), []
    ids = store.enqueue([EnqueueRow("mail", "1")] * (2 * PAGE_IDS + 1))
    store.cancel(ids[:500])

    def ask(question):
        asked.append(question)
        return question(store)

    assert [len(page) for page in Look(ask, ids).pages() if page] == [200, 200, 100]
    assert len(asked) == 3 + 3


def test_each_job_is_yielded_once(time):
    store = MemoryStore()
    ids = store.enqueue([EnqueueRow("mail", "1")] * 3)
    store.cancel(ids)
    assert [ended.id for ended in waiting(store, time, *ids, *ids)] == ids
    assert list(waiting(store, time)) == []


def test_a_store_that_is_unavailable_for_a_while_does_not_end_the_wait(time):
    store = FailingStore()
    store.errors = [StoreUnavailable("locked")] * 20
    (id,) = store.enqueue([EnqueueRow("mail", "1")])
    store.cancel([id])
    assert [ended.id for ended in waiting(store, time, id)] == [id]
    assert len(time.pauses) == 20


def test_a_store_that_stays_unavailable_ends_the_wait_after_the_timeout_of_the_client(time):
    store = FailingStore()
    store.errors = [StoreUnavailable("locked")] * 200
    with pytest.raises(StoreUnavailable, match="locked"):
        list(waiting(store, time, 1, store_timeout=5.0))
    assert time.now == pytest.approx(105.0, abs=MAX_PAUSE)
    store.errors = [StoreUnavailable("locked")]
    with pytest.raises(StoreUnavailable, match="locked"):
        list(waiting(store, time, 1, store_timeout=0.0))


def test_a_second_outage_is_not_counted_with_the_first(time):
    store = FailingStore()
    ids = store.enqueue([EnqueueRow("mail", "1")])

    def sleep(seconds):
        time.sleep(seconds)
        store.errors = [StoreUnavailable("locked")] * (len(time.pauses) % 2)

    with pytest.raises(TimeoutError):
        list(ended_jobs(lambda question: question(store), Wait(ids, 60, 1.0, time.now), time.clock, sleep))
    assert time.now == 160.0


def test_a_broken_store_ends_the_wait_at_once(time):
    store = FailingStore()
    store.errors = [StoreBroken("no right")]
    with pytest.raises(StoreBroken):
        list(waiting(store, time, 1, timeout=60))
    assert time.pauses == []


def test_the_time_is_up_also_while_the_store_is_unavailable(time):
    store = FailingStore()
    store.errors = [StoreUnavailable("locked")] * 100
    with pytest.raises(TimeoutError, match="within 1s; the store is unavailable: locked") as error:
        list(waiting(store, time, 1, timeout=1))
    assert isinstance(error.value.__cause__, StoreUnavailable)


@pytest.mark.parametrize("id", [True, "7", 7.0, None, 0, -1, 2**63])
def test_ids_are_checked(id):
    with pytest.raises((TypeError, ValueError), match="id: expected the number of a job, got"):
        Wait([1, id], None, 1.0, 0.0)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon", True])
def test_the_timeout_is_checked(timeout):
    with pytest.raises(ValueError, match="timeout: expected a duration such as"):
        Wait([1], timeout, 1.0, 0.0)


def test_the_errors_can_be_pickled():
    errors = [{"attempt": 2, "cause": "timeout", "type": "", "message": "killed\nafter 5s"}]
    copy = pickle.loads(pickle.dumps(JobFailed(7, "mail", "failed", errors)))
    assert (copy.id, copy.handler, copy.state, copy.cause, copy.errors) == (7, "mail", "failed", "timeout", errors)
    assert str(copy) == "job 7 (mail) failed at attempt 2: timeout: killed after 5s"
    assert str(JobFailed(7, "mail", "failed", [])) == "job 7 (mail) failed"
    expired = JobFailed(
        7, "mail", "cancelled", [{**errors[0], "cause": "expired", "message": "it had not started by noon"}]
    )
    assert (expired.cause, str(expired)) == ("expired", "job 7 (mail) expired: it had not started by noon")
    assert JobFailed(7, "mail", "cancelled", errors).cause is None
    assert len(str(JobFailed(7, "mail", "failed", [{**errors[0], "message": "x" * 9999}]))) < 400
    missing = pickle.loads(pickle.dumps(JobNotFound(7, True)))
    assert (missing.id, str(missing)) == (7, "job 7 was deleted while its end was waited for")
    assert str(JobNotFound(8)).startswith("no job 8: ")
