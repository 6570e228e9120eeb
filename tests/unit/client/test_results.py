"""The results of jobs, as a Client waits for them: other threads go on, and so does a forked child."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

import pytest

from supervisor import Client, JobFailed, JobNotFound
from supervisor.jobs import Cause, Failure, JobState, Kind, Outcome, Policy
from supervisor.stores.records import ClaimRequest
from supervisor.stores.sqlite.store import SqliteStore


@pytest.fixture
def client(tmp_path):
    with Client(f"sqlite:///{tmp_path}/jobs.db", create=True, timeout=5.0) as client:
        yield client


@contextmanager
def joined(folder):
    store = SqliteStore(folder / "jobs.db")
    store.join("one", "host", 1)
    yield store
    store.leave()
    store.close()


@pytest.fixture
def supervisor(client, tmp_path):
    """The store of a supervisor that claims and settles."""
    with joined(tmp_path) as store:
        yield store


def settle(store, result: str | None = None, failure: Failure | None = None) -> None:
    """Run the next job: it succeeds with the result, or fails for good."""
    (lease,) = store.claim([ClaimRequest("default", 1, 100, 100, 1000)], 30.0, lambda handler, queue: Policy())
    if failure is None:
        store.settle([Outcome(lease, Kind.SUCCEEDED, result=result, state=JobState.SUCCEEDED)])
    else:
        store.settle([Outcome(lease, Kind.FAILED, failure=failure, state=JobState.FAILED, dead_letter=True)])


def started(function, *arguments):
    """Call the function in a thread; returns a function that waits for the thread, and returns or raises as it did."""
    answers = []

    def call() -> None:
        try:
            answers.append((function(*arguments), None))
        except Exception as error:
            answers.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()

    def answer():
        thread.join(30.0)
        ((value, error),) = answers
        if error is not None:
            raise error
        return value

    return answer


def test_the_result_of_a_job_is_its_value(client, supervisor):
    id = client.enqueue("mail")
    result = started(client.result, id)
    settle(supervisor, '{"sent": 2}')
    assert result() == {"sent": 2}
    assert client.result(id, timeout=0) == {"sent": 2}


def test_a_job_without_a_result_has_none(client, supervisor):
    id = client.enqueue("mail")
    settle(supervisor)
    assert client.result(id) is None


def test_a_failed_job_raises_its_failure(client, supervisor):
    id = client.enqueue("mail")
    settle(supervisor, failure=Failure(Cause.CRASH, message="killed by SIGSEGV", signal="SIGSEGV"))
    with pytest.raises(JobFailed, match=r"job 1 \(mail\) failed at attempt 1: crash: killed by SIGSEGV") as error:
        client.result(id)
    assert (error.value.id, error.value.state, error.value.cause) == (id, "failed", "crash")
    assert error.value.errors[0]["signal"] == "SIGSEGV"


def test_a_cancelled_job_raises_too(client):
    id = client.enqueue("mail")
    result = started(client.result, id)
    assert client.cancel(id)
    with pytest.raises(JobFailed, match=r"job 1 \(mail\) was cancelled"):
        result()


def test_a_job_that_does_not_exist_raises_at_once(client):
    with pytest.raises(JobNotFound, match="no job 7: "):
        client.result(7)


def test_results_are_yielded_as_jobs_end_and_failures_are_values(client, supervisor):
    first, second, third = client.enqueue_many([("a", None), ("b", None), ("c", None)])
    results = client.results([third, second, first, 99])
    settle(supervisor, "1")
    assert next(results)[0] in (first, 99)
    assert next(results)[0] in (first, 99)
    settle(supervisor, failure=Failure(Cause.TIMEOUT))
    id, error = next(results)
    assert id == second and isinstance(error, JobFailed) and error.cause == "timeout"
    settle(supervisor, '"done"')
    assert list(results) == [(third, "done")]


def test_when_the_time_is_up_the_others_have_been_yielded(client, supervisor):
    ids = client.enqueue_many([("a", None), ("b", None)])
    settle(supervisor, "1")
    outcomes = {}
    with pytest.raises(TimeoutError, match="1 of 2 jobs have not ended within 50ms: 2"):
        outcomes.update(
            (id, outcome) for id, outcome in client.results(ids, "50ms") if outcomes.setdefault(id, outcome)
        )
    assert outcomes == {ids[0]: 1}


def test_bad_arguments_are_refused_before_anything_is_waited_for(client):
    with pytest.raises(TypeError, match="id: expected the number of a job, got 'mail'"):
        client.results([1, "mail"])
    with pytest.raises(ValueError, match="timeout: expected a duration"):
        client.results([1], timeout="soon")


def test_other_threads_use_the_client_meanwhile(client, supervisor):
    ids = [client.enqueue("mail") for _ in range(5)]
    results = [started(client.result, id) for id in ids]
    for n in range(50):
        client.enqueue("other", n, queue="other")
    for n in range(5):
        settle(supervisor, str(n))
    assert [result() for result in results] == [0, 1, 2, 3, 4]


def test_a_client_that_other_threads_keep_busy_ends_the_wait_in_time(client):
    """Not only after the timeout of the client."""
    client._access.timeout = float("inf")
    id, began, end = client.enqueue("mail"), threading.Event(), threading.Event()

    def use(store):
        began.set()
        end.wait(30.0)

    user = started(client._ask, use)
    assert began.wait(30.0)
    with pytest.raises(TimeoutError, match="other threads kept the client busy"):
        client.result(id, timeout=0.1)
    end.set()
    user()


def test_the_store_may_be_replaced_or_closed_while_its_jobs_are_waited_for(client, supervisor):
    id = client.enqueue("mail")
    results = client.results([id, 99])
    assert next(results)[0] == 99
    client.close()
    settle(supervisor, "1")
    assert list(results) == [(id, 1)]


def test_a_forked_child_goes_on_with_a_wait(client, tmp_path):
    ids = client.enqueue_many([("a", None), ("b", None)])
    results = client.results(ids)
    with joined(tmp_path) as supervisor:
        settle(supervisor, "1")
        assert next(results) == (ids[0], 1)
        settle(supervisor, "2")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if list(results) == [(ids[1], 2)] and client.result(ids[0]) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(results) == [(ids[1], 2)]


def test_a_fork_does_not_disturb_a_thread_that_waits(client, supervisor):
    id = client.enqueue("mail")
    result = started(client.result, id)
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    settle(supervisor, "1")
    assert result() == 1
