"""Workflows and batches: jobs that wait for each other are enqueued together, all or none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import AsyncClient, Client, JobFailed, handler
from supervisor.client import InvalidJob
from supervisor.errors import JobExists, NoSuchParent

URL = "sqlite:///jobs.db"


@handler(queue="parts")
def fetch(part: int) -> int:
    return part


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.chdir(tmp_path)
    with Client(URL, create=True, timeout=0.0) as client:
        yield client


def job_of(client: Client, id: int) -> dict[str, Any]:
    job = client.job(id)
    assert job is not None
    return job


def test_the_jobs_of_a_workflow_wait_for_each_other(client: Client) -> None:
    before = client.enqueue("before")
    with client.workflow() as flow:
        a = flow.add("fetch", {"part": 1}, priority=3)
        b = flow.add(fetch, part=2)
        c = flow.add("merge", after=[a, b, before], on_parent_failed="run")
        d = flow.options(queue="other", after=[c], delay="1h").add(fetch, part=3)
    assert flow.ids == [a.id, b.id, c.id, d.id]
    assert [job_of(client, id)["state"] for id in flow.ids] == ["ready", "ready", "blocked", "blocked"]
    assert job_of(client, c.id)["after"] == [a.id, b.id, before]
    assert [job_of(client, step.id)["queue"] for step in (a, b, d)] == ["default", "parts", "other"]
    assert job_of(client, a.id)["priority"] == 3
    assert client.job(client.enqueue("later", after=[c])) is not None


def test_nothing_is_enqueued_if_a_block_is_left_by_an_error(client: Client) -> None:
    with pytest.raises(RuntimeError), client.workflow() as flow:
        flow.add("fetch")
        raise RuntimeError
    with pytest.raises(InvalidJob, match="priority"), client.workflow() as flow:
        flow.add("fetch")
        flow.add("merge", priority="high")
    with pytest.raises(NoSuchParent, match="no job 77"), client.workflow() as flow:
        flow.add("fetch", after=[77])
    assert client.enqueue("first") == 1


def test_a_job_is_added_inside_of_the_block_only(client: Client) -> None:
    flow = client.workflow()
    with pytest.raises(RuntimeError, match="add them inside of `with client"):
        flow.add("fetch")
    with pytest.raises(RuntimeError, match="add them inside of `with client"):
        flow.options(queue="slow").add("fetch")
    with flow:
        flow.add("fetch")
        with pytest.raises(RuntimeError, match="runs already"), flow:
            pass
    with pytest.raises(RuntimeError, match="enqueued already"):
        flow.add("merge")
    with pytest.raises(RuntimeError, match="enqueued already"), flow:
        pass
    with pytest.raises(ZeroDivisionError), client.workflow() as dropped:
        1 / 0  # noqa: B018
    with pytest.raises(RuntimeError, match="ended with an error"):
        dropped.add("fetch")
    assert client.counts([1, 2]) == {"ready": 1, "deleted": 1}


def test_wrong_parents_are_refused_where_they_are_given(client: Client) -> None:
    with client.workflow() as other:
        step = other.add("fetch")
        with client.workflow() as flow:
            with pytest.raises(InvalidJob, match="not enqueued yet"):
                flow.add("merge", after=[step])
            with pytest.raises(InvalidJob, match="list of ids"):
                flow.add("merge", after=[-1])
            with pytest.raises(InvalidJob, match="expected after with it"):
                flow.add("merge", on_parent_failed="run")
            with pytest.raises(InvalidJob, match="cancel or run or wait"):
                flow.add("merge", after=[1], on_parent_failed="skip")
    with pytest.raises(RuntimeError, match="enqueued already"):
        other.add("fetch")
    assert client.counts(other.ids) == {"ready": 1}


def test_a_batch_has_jobs_that_run_after_all_of_its_jobs(client: Client) -> None:
    batch = client.enqueue_batch([("a", 1), ("b", 2)], on_success=("report", "x"), on_finished="clean")
    assert batch.ids == [1, 2]
    success, finished = job_of(client, batch.on_success or 0), job_of(client, batch.on_finished or 0)
    assert (success["handler"], success["payload"], success["after"]) == ("report", "x", [1, 2])
    assert (finished["handler"], finished["payload"], finished["after"]) == ("clean", None, [1, 2])
    client.cancel(1)
    client.cancel(2)
    assert job_of(client, success["id"])["state"] == "cancelled"
    assert job_of(client, finished["id"])["state"] == "ready"
    assert client.counts([*batch.ids, 3, 4, 99]) == {"cancelled": 3, "ready": 1, "deleted": 1}


def test_the_jobs_after_an_empty_batch_run_at_once(client: Client) -> None:
    batch = client.enqueue_batch([], on_success="report")
    assert (batch.ids, batch.on_finished) == ([], None)
    assert job_of(client, batch.on_success or 0)["state"] == "ready"


def test_a_batch_may_have_any_number_of_jobs(client: Client) -> None:
    batch = client.enqueue_batch([("a", n) for n in range(10_001)], on_success="report")
    assert job_of(client, batch.on_success or 0)["state"] == "blocked"
    assert client.counts(batch.ids) == {"ready": 10_001}


def test_a_mistake_in_a_job_after_a_batch_is_named(client: Client) -> None:
    with pytest.raises(InvalidJob, match="on_success: handler"):
        client.enqueue_batch([("a", 1)], on_success="")
    assert client.enqueue("first") == 1


def test_a_callback_with_a_unique_key_is_a_job_of_its_own(client: Client) -> None:
    """A job that has the key already does not run after the batch."""
    callback = {"handler": "report", "unique": "day"}
    for how in ("skip", "replace"):
        for name in ("on_success", "on_finished"):
            with pytest.raises(InvalidJob, match=f'{name}: unique: .*expected on_conflict="reject"'):
                client.enqueue_batch([("a", 1)], **{name: callback | {"on_conflict": how}})
    batch = client.enqueue_batch([("a", 1)], on_finished=callback | {"on_conflict": "reject"})
    with pytest.raises(JobExists):
        client.enqueue_batch([("a", 1)], on_finished=callback | {"on_conflict": "reject"})
    assert (batch.ids, batch.on_finished) == ([1], 2)


def test_the_result_of_a_job_that_was_cancelled_names_its_parent(client: Client) -> None:
    with client.workflow() as flow:
        a = flow.add("fetch")
        b = flow.add("merge", after=[a])
    client.cancel(a.id)
    with pytest.raises(JobFailed, match=r"job 2 \(merge\) was cancelled: its parent, job 1, was cancelled") as failed:
        client.result(b.id)
    assert failed.value.cause == "parent_failed"
    with pytest.raises(JobFailed, match=r"job 1 \(fetch\) was cancelled$") as failed:
        client.result(a.id)
    assert failed.value.cause is None


def test_the_header_of_results_can_not_be_given(client: Client) -> None:
    with pytest.raises(InvalidJob, match=r"headers: supervisor\.parents"):
        client.enqueue("mail", headers={"supervisor.parents": {}})


def test_workflows_and_batches_of_the_async_client(client: Client) -> None:
    async def calls() -> None:
        async with AsyncClient(URL) as jobs:
            async with jobs.workflow() as flow:
                a = flow.add("fetch")
                flow.add("merge", after=[a])
            assert await jobs.counts(flow.ids) == {"ready": 1, "blocked": 1}
            batch = await jobs.enqueue_batch([("a", 1)], on_finished="clean")
            assert (batch.ids, batch.on_success, batch.on_finished) == ([3], None, 4)
            with pytest.raises(RuntimeError):
                async with jobs.workflow() as left:
                    left.add("fetch")
                    raise RuntimeError
            assert await jobs.enqueue("next") == 5

    asyncio.run(calls())
