"""Real workers beside a test: timeouts and crashes are real, and clients in workers use the same temporary store."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor import Client, JobFailed
from supervisor.testing import JobRunner

pytest_plugins = ["supervisor.testing.pytest_plugin"]

PLUGIN = """
import os, signal, time
from supervisor import Client, handler

@handler(timeout=0.3, max_retries=0)
def hang(job):
    time.sleep(3600)

@handler(max_retries=0)
def crash(job):
    os.kill(os.getpid(), signal.SIGKILL)

@handler
def pid(job):
    return os.getpid()

@handler
def parent(job):
    with Client("postgresql://nowhere/jobs") as jobs:
        return jobs.enqueue("pid")

@handler
async def fetch(url: str):
    return url
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "work.py").write_text(PLUGIN)
    return Client("postgresql://nowhere/jobs")


def test_jobs_run_in_real_workers(jobs: Client, job_runner: JobRunner, tmp_path: Path) -> None:
    before = jobs.enqueue("pid")
    with job_runner.workers(count=1):
        hang, crash, parent = (jobs.enqueue(name) for name in ("hang", "crash", "parent"))
        fetch = jobs.enqueue("fetch", {"url": "a"})
        later = jobs.enqueue("pid", delay="1h")
        for id, cause in ((hang, "timeout"), (crash, "crash")):
            with pytest.raises(JobFailed) as failed:
                jobs.result(id, timeout=30)
            assert failed.value.cause == cause
        child = jobs.result(parent, timeout=30)
        assert jobs.result(child, timeout=30) != jobs.result(jobs.enqueue("parent"), timeout=30)
        assert jobs.result(fetch, timeout=30) == "a"
        with pytest.raises(JobFailed, match="unknown_handler"):
            jobs.result(jobs.enqueue("nobody"), timeout=30)
        enqueued = {job.id: job for job in job_runner.enqueued}
        assert enqueued[later].delay == 3600 and enqueued[child].handler == "pid"
        for call in (job_runner.run_enqueued, job_runner.clear, lambda: job_runner.advance("1h")):
            with pytest.raises(RuntimeError, match=r"not inside of workers\(\)"):
                call()
    assert [(job.id, job.state) for job in job_runner.enqueued] == [(before, "ready")]
    assert [each.name for each in tmp_path.iterdir()] == ["plugins"]


def test_an_error_beside_real_workers_has_their_log(jobs: Client, job_runner: JobRunner) -> None:
    with pytest.raises(TimeoutError) as raised, job_runner.workers("plugins/work.py"):
        jobs.result(jobs.enqueue("pid", delay="1h"), timeout=0)
    assert "supervisor started" in raised.value.__notes__[0]
