"""Two supervisors on one SQLite file: the jobs of one that stands still pass to the other, and none is settled twice."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system.command import Command, Running, wait_for
from tests.system.stopped import stop_between_writes

CONFIG = """
workers: {count: 2, heartbeat: 200ms}
lease: {ttl: 1s}
retry: {max_retries: 20, backoff: {base: 50ms, factor: 1, jitter: none}}
log: {level: debug}
"""
LONGER = CONFIG.replace("ttl: 1s", "ttl: 4s")
"""For supervisors that must not lose their leases on a busy machine."""
PLUGIN = {
    "slow.py": """
        import os, time
        from pathlib import Path
        from supervisor import handler

        @handler
        def slow(job):
            "Mark each start with the pid of the worker. Without seconds the job waits for a file of its own."
            Path(f"{job.payload['marks']}/{job.id}-{job.attempt}-{os.getpid()}").touch()
            if job.payload["seconds"] is None:
                while not os.path.exists(f"go-{job.id}"):
                    time.sleep(0.01)
            else:
                time.sleep(job.payload["seconds"])
            return job.attempt
    """
}


def two(command: Command) -> tuple[Running, Running]:
    runs = command.run(), command.run()
    for run in runs:
        run.logged("supervisor started")
        wait_for(lambda run=run: run.log.count(") started") >= 2)  # type: ignore[misc]
    return runs


def allow_end(command: Command, jobs: Iterable[dict[str, Any]]) -> None:
    """Let the jobs end that wait."""
    for job in jobs:
        (command.folder / f"go-{job['id']}").touch()


def enqueue_slow(command: Command, how_many: int, seconds: float | None = None) -> Path:
    marks = command.folder / "marks"
    marks.mkdir(exist_ok=True)
    command.enqueue_many([{"handler": "slow", "payload": {"marks": str(marks), "seconds": seconds}}] * how_many)
    return marks


def starts(marks: Path, job: dict[str, Any]) -> list[str]:
    return [path.name for path in marks.glob(f"{job['id']}-*")]


def workers(run: Running) -> set[int]:
    return {int(pid) for pid in re.findall(r"worker \d+ \(pid (\d+)\) started", run.log)}


def settled(*runs: Running) -> Counter[int]:
    """How often each job was settled as succeeded, by the logs."""
    return Counter(int(id) for run in runs for id in re.findall(r"job=(\d+) \S+ attempt \d+ succeeded", run.log))


def all_done(command: Command) -> list[dict[str, Any]]:
    def done() -> list[dict[str, Any]]:
        jobs = command.jobs()
        assert {job["state"] for job in jobs} == {"succeeded"}, Counter(job["state"] for job in jobs)
        return jobs

    return wait_for(done, 60)


def the_supervisor(run: Running) -> list[psutil.Process]:
    return [psutil.Process(run.pid)]


def the_whole_tree(run: Running) -> list[psutil.Process]:
    return [*the_supervisor(run), *psutil.Process(run.pid).children(recursive=True)]


def now() -> str:
    return datetime.now(UTC).isoformat()


def resume(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


@pytest.mark.parametrize("what", [the_supervisor, the_whole_tree])
def test_a_supervisor_that_stood_still_has_lost_its_leases_and_settles_nothing(
    command: Command, what: Callable[[Running], list[psutil.Process]]
) -> None:
    command.write(config=LONGER, plugins=PLUGIN)
    stopped, other = two(command)
    marks = enqueue_slow(command, 4)
    wait_for(lambda: len(list(marks.iterdir())) == 4)
    wait_for(lambda: all(job["started_at"] for job in command.jobs()))
    stop_between_writes(command, processes := what(stopped))
    mine = workers(stopped)
    lost = [job for job in command.jobs() if int(starts(marks, job)[0].rpartition("-")[2]) in mine]
    assert len(lost) == 2
    lost_ids = {job["id"] for job in lost}
    allow_end(command, [job for job in command.jobs() if job["id"] not in lost_ids])

    def both_run_elsewhere() -> None:
        assert all(len(starts(marks, job)) == 2 for job in lost), list(marks.iterdir())

    wait_for(both_run_elsewhere, 40)
    allow_end(command, lost)
    resume(processes)
    stopped.logged("stood still")
    stale = stopped.logged("stale")
    assert int(re.findall(r"job=(\d+)", stale)[0]) in lost_ids
    jobs = all_done(command)
    for job in jobs:
        assert job["errors"] == []
        assert len(starts(marks, job)) == 1 + (job["id"] in lost_ids)
    assert "stale" not in other.log
    enqueue_slow(command, 4)
    wait_for(lambda: all(starts(marks, job) for job in command.jobs()))
    allow_end(command, command.jobs())
    after = all_done(command)
    assert {job["id"]: job for job in after if job["id"] in {job["id"] for job in jobs}} == {
        job["id"]: job for job in jobs
    }
    ran_by = {int(name.rpartition("-")[2]) for job in after[:4] for name in starts(marks, job)}
    assert ran_by & workers(stopped), "the supervisor that stood still goes on"
    expected = {job["id"]: 1 for job in after}

    def all_logged() -> None:
        assert settled(stopped, other) == expected

    wait_for(all_logged)


def test_no_job_is_settled_twice_while_supervisors_stand_still_at_random(command: Command) -> None:
    command.write(config=CONFIG, plugins=PLUGIN)
    runs = two(command)
    marks, chance = enqueue_slow(command, 60, 0.4), random.Random(3)
    for number in range(6):
        processes = (the_supervisor, the_whole_tree)[number % 2](chance.choice(runs))
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        time.sleep(chance.uniform(0.8, 2.2))  # about the length of a lease
        resume(processes)
        time.sleep(0.3)
    jobs = all_done(command)
    assert settled(*runs) == {job["id"]: 1 for job in jobs}
    for job in jobs:
        assert {error["cause"] for error in job["errors"]} <= {"lease_expired"}
        assert job["retries"] == len(job["errors"])
        assert job["result"] == job["attempt"], "the settled attempt is the last"
    assert "Traceback" not in runs[0].log + runs[1].log
    assert len(list(marks.iterdir())) >= 60


def test_a_job_much_longer_than_its_lease_runs_once(command: Command) -> None:
    command.write(config=LONGER, plugins=PLUGIN)
    runs = two(command)
    marks = enqueue_slow(command, 2)
    wait_for(lambda: len(list(marks.iterdir())) == 2)
    first = {job["id"]: job["lease"]["until"] for job in command.jobs()}

    def all_extended() -> None:
        assert all(job["lease"]["until"] > first[job["id"]] for job in command.jobs())

    wait_for(lambda: min(first.values()) < now())
    wait_for(all_extended)
    allow_end(command, command.jobs())
    jobs = all_done(command)
    assert [(len(starts(marks, job)), job["errors"]) for job in jobs] == [(1, [])] * 2
    assert "stale" not in runs[0].log + runs[1].log
