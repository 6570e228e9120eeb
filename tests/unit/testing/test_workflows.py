"""Workflows in the fixture job_runner: jobs get the results of their parents."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor import AsyncClient, Client, Job, ParentResultsTooLarge, Reject, handler
from supervisor.testing import JobRunner

pytest_plugins = ["supervisor.testing.pytest_plugin"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@handler(max_retries=0)
def fetch(part: str) -> str:
    if part == "bad":
        raise Reject("bad part")
    return part * 2


@handler
def merge(job: Job) -> dict[str, object]:
    return {"parts": list(job.parents.values()), "failed": job.failed_parents, "ids": job.parent_ids}


@handler
async def async_merge(job: Job) -> list[object]:
    return [*job.parents.values()]


def test_a_job_gets_the_results_of_its_parents(job_runner: JobRunner) -> None:
    job_runner.load(fetch, merge, async_merge)
    with Client().workflow() as flow:
        parts = [flow.add(fetch, part=part) for part in "ab"]
        steps = [flow.add(merge, after=parts[::-1]), flow.add(async_merge, after=parts)]
    jobs = {job.id: job.result for job in job_runner.run_enqueued()}
    a, b = (part.id for part in parts)
    assert jobs[steps[0].id] == {"parts": ["bb", "aa"], "failed": [], "ids": [b, a]}
    assert jobs[steps[1].id] == ["aa", "bb"]


def test_a_job_that_runs_all_the_same_knows_which_parents_failed(job_runner: JobRunner) -> None:
    job_runner.load(fetch, merge)
    with Client().workflow() as flow:
        parts = [flow.add(fetch, part=part) for part in ("a", "bad")]
        last, never = flow.add(merge, after=parts, on_parent_failed="run"), flow.add(merge, after=parts)
    jobs = {job.id: job.result for job in job_runner.run_enqueued(raise_failures=False)}
    assert jobs[last.id] == {"parts": ["aa", None], "failed": [parts[1].id], "ids": [part.id for part in parts]}
    assert never.id not in jobs


def test_a_job_without_parents_has_no_results() -> None:
    job = Job(1, "merge")
    assert (job.parents, job.parent_ids, job.failed_parents) == ({}, [], [])


def test_results_that_are_too_large_raise_an_error_only_where_they_are_read(job_runner: JobRunner) -> None:
    @handler
    def large() -> str:
        return "x" * 600_000

    @handler
    def sizes(job: Job) -> list[int]:
        with pytest.raises(ParentResultsTooLarge, match="1,200,004 bytes"):
            _ = job.parents
        return [len(result) for _, result in Client().results(job.parent_ids)]

    with Client().workflow() as flow:
        last = flow.add(sizes, after=[flow.add(large), flow.add(large)])
    jobs = {job.id: job.result for job in job_runner.run_enqueued()}
    assert jobs[last.id] == [600_000, 600_000]


async def _enqueue() -> list[int]:
    async with AsyncClient() as jobs, jobs.workflow() as flow:
        flow.add(merge, after=[flow.add(fetch, part="a")])
    return flow.ids


def test_a_job_may_enqueue_a_workflow(job_runner: JobRunner) -> None:
    @handler
    async def start() -> list[int]:
        return await _enqueue()

    Client().enqueue(start)
    assert [job.handler for job in job_runner.run_enqueued()] == ["start", "fetch", "merge"]
