"""The fixture job_runner: handlers run by the rules of workers, and enqueued jobs stay in memory."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from supervisor import AsyncClient, Client, InvalidPayload, Job, JobFailed, Reject, Retry, Snooze, handler
from supervisor.errors import InvalidJob, PluginMistake, StoreError
from supervisor.testing import JobRunner

pytest_plugins = ["pytester", "supervisor.testing.pytest_plugin"]

CLIENT = Client("sqlite:///client.db")
"""As a program has it: made at import, before any test."""

PLUGIN = """
import os
from supervisor import Client, handler, hookimpl

started = []

@handler
def greet(name: str, times: int = 1):
    return f"hello {name} " * times + str(started)

@handler
def parent(job):
    return [Client().enqueue("greet", {"name": name}) for name in job.payload]

@hookimpl
def supervisor_worker_started(worker):
    started.append(worker.pid == os.getpid())

@hookimpl(wrapper=True)
def supervisor_run(job):
    return [job.handler, (yield)]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@handler
def add(a: int, b: int = 2) -> int:
    return a + b


@handler(max_retries=2, queue="sums", priority=3)
def flaky(job: Job, fails: int) -> int:
    if job.attempt <= fails:
        raise ConnectionError(f"attempt {job.attempt}")
    return job.attempt


@handler(never_retry=ValueError)
def never(job: Job) -> None:
    raise ValueError("no")


@handler
def rejecting(job: Job) -> None:
    raise Reject("bad order")


seen: list[int] = []


@handler(max_retries=0)
async def sleepy(job: Job, times: int) -> int:
    seen.append(job.attempt)
    if len(seen) <= times:
        raise Snooze("1h", max_snoozes=2)
    return len(seen)


@handler(max_retries=0)
def sleepy_until(job: Job, until: str) -> None:
    seen.append(job.attempt)
    raise Snooze("1h", until=datetime.fromisoformat(until))


@handler
def later(job: Job) -> int:
    if job.attempt == 1:
        raise Retry("busy", after="1h")
    return job.attempt


@handler
async def fetch(url: str) -> str:
    await asyncio.sleep(0)
    return f"page of {url}"


# --- run


def test_a_handler_runs_with_bound_arguments_and_its_result_goes_through_json(job_runner: JobRunner) -> None:
    @handler
    def due(day: date) -> Any:
        return {"next": day + timedelta(days=1), "pair": (1, 2)}

    assert job_runner.run(due, day=date(2030, 1, 31)) == {"next": "2030-02-01", "pair": [1, 2]}
    assert job_runner.run(add, 1, b=5) == 6
    assert job_runner.run("add", {"a": 1}) == 3  # known by now


def test_all_attempts_run_at_once(job_runner: JobRunner) -> None:
    assert job_runner.run(flaky, fails=2) == 3
    assert job_runner.run(later) == 2


def test_a_job_that_fails_for_good_raises_from_the_exception_of_its_last_attempt(job_runner: JobRunner) -> None:
    with pytest.raises(JobFailed) as raised:
        job_runner.run(flaky, fails=3)
    failed = raised.value
    assert (failed.handler, failed.state, failed.cause) == ("flaky", "failed", "exception")
    assert [error["message"] for error in failed.errors] == ["attempt 1", "attempt 2", "attempt 3"]
    assert [error["attempt"] for error in failed.errors] == [1, 2, 3]
    assert isinstance(failed.__cause__, ConnectionError)
    with pytest.raises(JobFailed) as raised:
        job_runner.options(max_retries=0).run(flaky, fails=1)
    assert len(raised.value.errors) == 1


@pytest.mark.parametrize(("function", "cause"), [(never, "exception"), (rejecting, "rejected")])
def test_final_failures_are_not_retried(job_runner: JobRunner, function: Any, cause: str) -> None:
    with pytest.raises(JobFailed) as raised:
        job_runner.run(function)
    assert (len(raised.value.errors), raised.value.cause) == (1, cause)


def test_payloads_and_results_are_checked_as_in_a_worker(job_runner: JobRunner) -> None:
    @handler
    def wrong(job: Job) -> Any:
        return object()

    with pytest.raises(InvalidJob, match=r"add: payload\.a: expected a valid integer"):
        job_runner.run(add, a="x")  # type: ignore[arg-type]
    job_runner.load(add)
    with pytest.raises(JobFailed) as rejected:
        job_runner.run("add", {"a": "x"})
    assert rejected.value.cause == "rejected" and isinstance(rejected.value.__cause__, InvalidPayload)
    with pytest.raises(JobFailed, match="its result can't be stored"):
        job_runner.run(wrong)


def test_an_async_handler_is_awaited_also_inside_an_event_loop(job_runner: JobRunner) -> None:
    async def main() -> str:
        return job_runner.run(fetch, url="b")

    assert job_runner.run(fetch, url="a") == "page of a"
    assert asyncio.run(main()) == "page of b"


def test_handlers_of_plugins_run_by_name_with_their_hooks(job_runner: JobRunner, folder: Path) -> None:
    (folder / "jobs").mkdir()
    (folder / "jobs" / "greetings.py").write_text(PLUGIN)
    with pytest.raises(LookupError, match=r"no handler 'greet'; load its plugin.*job_runner\.load"):
        job_runner.run("greet", {"name": "Ada"})
    job_runner.load("jobs")
    assert job_runner.run("greet", {"name": "Ada"}) == ["greet", "hello Ada [True]"]
    with pytest.raises(LookupError, match="did you mean"):
        job_runner.run("gret")


def test_a_plugin_that_can_not_be_loaded_names_the_file_and_the_line(job_runner: JobRunner, folder: Path) -> None:
    (folder / "broken.py").write_text("\n1 / 0\n")
    with pytest.raises(PluginMistake, match=r"broken\.py:2: ZeroDivisionError"):
        job_runner.load("broken.py")
    with pytest.raises(ValueError, match="put @handler above it"):
        job_runner.load(lambda job: None)


def test_the_end_of_a_test_inside_a_handler_ends_the_test(job_runner: JobRunner) -> None:
    @handler
    def failing(job: Job) -> None:
        pytest.fail("called")

    with pytest.raises(pytest.fail.Exception, match="called"):
        job_runner.run(failing)
    CLIENT.enqueue(failing)
    with pytest.raises(pytest.fail.Exception, match="called"):
        job_runner.run_enqueued()
    assert job_runner.enqueued[0].state == "ready"


def test_a_job_sees_no_context_variables_of_another(job_runner: JobRunner) -> None:
    variable = contextvars.ContextVar("variable", default=0)

    @handler
    def count(job: Job) -> int:
        variable.set(variable.get() + 1)
        return variable.get()

    assert [job_runner.run(count), job_runner.run(count), variable.get()] == [1, 1, 0]


# --- enqueued


def test_jobs_of_all_clients_are_kept_in_memory(job_runner: JobRunner, folder: Path) -> None:
    CLIENT.enqueue(add, 1)
    with Client("postgresql://nowhere/jobs") as other:
        other.options(delay="10m", headers={"trace": "x"}).enqueue(flaky, fails=1)
    with Client() as found:
        found.enqueue_many([("mail", {"to": "me"})])
    asyncio.run(AsyncClient("sqlite:///x.db").enqueue("mail", at=datetime.now(UTC) + timedelta(hours=1)))
    first, second, third, fourth = job_runner.enqueued
    assert (first.handler, first.payload, first.queue, first.priority) == ("add", {"a": 1}, "default", 0)
    assert (second.handler, second.queue, second.priority, second.delay) == ("flaky", "sums", 3, 600)
    assert (second.headers, second.state) == ({"trace": "x"}, "scheduled")
    assert (third.payload, third.delay, third.state) == ({"to": "me"}, 0, "ready")
    assert 3590 < fourth.delay <= 3600 and fourth.due_at > datetime.now(UTC) + timedelta(minutes=59)
    assert list(folder.iterdir()) == []
    job_runner.clear()
    assert job_runner.enqueued == [] and job_runner.run_enqueued() == []


def test_a_job_that_is_run_directly_is_not_among_the_enqueued(job_runner: JobRunner) -> None:
    job_runner.run(add, 1)
    assert job_runner.enqueued == []


def test_unique_keys_and_expiry_are_those_of_a_store(job_runner: JobRunner) -> None:
    once = CLIENT.options(unique="a", unique_while="1d", expires="10m")
    first = once.enqueue(add, 1)
    assert once.enqueue(add, 2) == first and len(job_runner.enqueued) == 1
    job_runner.advance("10m")
    assert job_runner.run_enqueued(raise_failures=False) == []
    with pytest.raises(JobFailed, match="it had not started by"):
        CLIENT.result(first, timeout=0)
    job_runner.clear()
    assert once.enqueue(add, 3) != first


def test_a_client_has_its_own_store_again_after_the_test(tmp_path: Path) -> None:
    assert not (tmp_path / "client.db").exists()
    with pytest.raises(StoreError, match=r"client\.db"):
        CLIENT.enqueue("mail")


def test_a_connection_still_needs_a_store_that_takes_one(job_runner: JobRunner) -> None:
    with pytest.raises(StoreError, match="only a PostgreSQL store"):
        CLIENT.enqueue("mail", connection=object())
    Client("postgresql://nowhere/jobs").enqueue("mail", connection=object())
    assert [job.handler for job in job_runner.enqueued] == ["mail"]


def test_enqueued_jobs_run_in_the_order_of_a_supervisor_with_those_that_they_enqueue(job_runner: JobRunner) -> None:
    order: list[Any] = []

    @handler
    def note(job: Job) -> None:
        order.append(job.payload)
        if job.payload == "urgent":
            CLIENT.enqueue(note, "child")

    CLIENT.enqueue(note, "first")
    CLIENT.options(priority=200).enqueue(note, "urgent")
    CLIENT.options(delay=1).enqueue(note, "later")
    ran = job_runner.run_enqueued()
    assert order == ["urgent", "first", "child"]
    assert [job.payload for job in ran] == order and {job.state for job in ran} == {"succeeded"}
    job_runner.advance(1)
    assert [job.payload for job in job_runner.run_enqueued()] == ["later"]


def test_retries_come_due_when_the_time_is_advanced(job_runner: JobRunner) -> None:
    id = CLIENT.enqueue(later)
    (job,) = job_runner.run_enqueued()
    assert (job.state, job.attempt) == ("scheduled", 2)
    job_runner.advance("59m")
    assert job_runner.run_enqueued() == []
    job_runner.advance("1m")
    assert [job.result for job in job_runner.run_enqueued()] == [2]
    assert CLIENT.result(id, timeout=0) == 2


def test_a_backoff_has_its_whole_length(job_runner: JobRunner) -> None:
    CLIENT.enqueue(flaky, fails=2)
    for delay in (0.5, 1.0):
        assert [job.state for job in job_runner.run_enqueued()] == ["scheduled"]
        job_runner.advance(0.8 * delay)
        assert job_runner.run_enqueued() == []
        job_runner.advance(0.2 * delay)
    assert [job.state for job in job_runner.run_enqueued()] == ["succeeded"]


def test_a_failure_for_good_is_raised_once_all_have_run(job_runner: JobRunner) -> None:
    failing, good = CLIENT.enqueue(rejecting), CLIENT.enqueue(add, 1)
    with pytest.raises(JobFailed, match="bad order") as raised:
        job_runner.run_enqueued()
    assert isinstance(raised.value.__cause__, Reject)
    assert [job.state for job in job_runner.enqueued] == ["failed", "succeeded"]
    outcomes = dict(CLIENT.results([failing, good]))
    assert outcomes[good] == 3 and isinstance(outcomes[failing], JobFailed)
    CLIENT.enqueue(rejecting)
    assert [job.state for job in job_runner.run_enqueued(raise_failures=False)] == ["failed"]


def test_jobs_that_enqueue_themselves_for_ever_are_an_error(job_runner: JobRunner) -> None:
    @handler
    def again(job: Job) -> None:
        CLIENT.enqueue(again)

    CLIENT.enqueue(again)
    with pytest.raises(RuntimeError, match="20 attempts have run and more are due"):
        job_runner.run_enqueued(limit=20)


def test_an_unknown_handler_of_an_enqueued_job_is_an_error(job_runner: JobRunner) -> None:
    CLIENT.enqueue("nobody")
    with pytest.raises(LookupError, match="no handler 'nobody'"):
        job_runner.run_enqueued()
    assert job_runner.enqueued[0].state == "ready"


# --- waits


def test_a_wait_of_the_test_itself_runs_what_is_due(job_runner: JobRunner) -> None:
    assert CLIENT.result(CLIENT.enqueue(add, 1), timeout=10) == 3
    assert list(CLIENT.results([CLIENT.enqueue(add, 1)])) == [(2, 3)]
    id = CLIENT.options(delay="1h").enqueue(add, 1)
    with pytest.raises(RuntimeError, match=r"job 3 \(add\) is due in 3[56]\d\d\.\ds, and nobody would end it"):
        CLIENT.result(id)
    with pytest.raises(TimeoutError):
        CLIENT.result(id, timeout=0)


def test_a_handler_waits_for_its_children_and_not_for_itself(job_runner: JobRunner) -> None:
    @handler
    def parent(job: Job) -> int:
        return CLIENT.result(job.id if job.payload else CLIENT.enqueue(add, 1))

    assert CLIENT.result(CLIENT.enqueue(parent)) == 3
    with pytest.raises(JobFailed, match="runs in this thread, and nobody would end it"):
        CLIENT.result(CLIENT.options(max_retries=0).enqueue(parent, "itself"))


def test_a_wait_of_another_thread_ends_when_the_test_runs_the_job(job_runner: JobRunner) -> None:
    results: list[int] = []
    id = CLIENT.enqueue(add, 1)
    thread = threading.Thread(target=lambda: results.append(CLIENT.result(id, timeout=30)))
    thread.start()
    job_runner.run_enqueued()
    thread.join()
    assert results == [3]


def test_progress_and_messages_of_jobs_are_there_to_be_asserted(
    job_runner: JobRunner, caplog: pytest.LogCaptureFixture
) -> None:
    @handler
    def copy(job: Job) -> None:
        job.progress(1, 2)
        job.progress(2, 2, "done")
        job.log("copied %d", 2)

    @handler
    async def copy_async(job: Job) -> None:
        await asyncio.to_thread(job.progress, 7)

    with caplog.at_level("INFO"):
        job_runner.run(copy)
    job_runner.run(copy_async)
    assert job_runner.progress == [(1, 2, None), (2, 2, "done"), (7, None, None)]
    assert ("job", 20, "copied 2") in caplog.record_tuples
    job_runner.load(copy)
    CLIENT.enqueue("copy")
    (job,) = job_runner.run_enqueued()
    assert job.progress is not None and (job.progress["done"], job.progress["message"]) == (2, "done")


@pytest.fixture
def nothing_seen() -> None:
    seen.clear()


@pytest.mark.usefixtures("nothing_seen")
def test_snoozes_follow_at_once_and_count_no_retry(job_runner: JobRunner) -> None:
    assert job_runner.run(sleepy, times=2) == 3
    assert seen == [1, 1, 1]


@pytest.mark.usefixtures("nothing_seen")
def test_a_job_that_snoozes_too_often_fails(job_runner: JobRunner) -> None:
    with pytest.raises(JobFailed, match="it has snoozed 2 times, the most that max_snoozes=2 allows"):
        job_runner.run(sleepy, times=9)


@pytest.mark.usefixtures("nothing_seen")
def test_a_job_that_snoozes_until_a_time_fails_as_if_the_snoozes_had_passed(job_runner: JobRunner) -> None:
    until = datetime.now(UTC) + timedelta(hours=2, minutes=30)
    with pytest.raises(JobFailed, match="would end after until="):
        job_runner.run(sleepy_until, until=until.isoformat())
    assert seen == [1, 1, 1]


@pytest.mark.usefixtures("nothing_seen")
def test_snoozed_jobs_come_due_when_the_time_is_advanced(job_runner: JobRunner) -> None:
    id = CLIENT.enqueue(sleepy, times=9)
    for _ in range(2):
        (job,) = job_runner.run_enqueued()
        assert (job.state, job.attempt) == ("scheduled", 1)
        assert job_runner.run_enqueued() == []
        job_runner.advance("1h")
    (job,) = job_runner.run_enqueued(raise_failures=False)
    assert (job.id, job.state) == (id, "failed")
