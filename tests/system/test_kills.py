"""kill -9 of any process at any moment: every job ends, none is lost, none runs more often than was counted."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.system import hanging_jobs as hanging
from tests.system.command import TIMEOUT, Command, Running, wait_for

JOBS = 400
CONFIG = """
workers: {count: 4}
retry: {max_retries: 50, backoff: {base: 50ms, factor: 1, jitter: none}}
"""
COUNTED = {
    "counted.py": """
        import os, time
        from pathlib import Path
        from supervisor import handler

        @handler
        def counted(job):
            "One byte in a file of its own for each start, and one in another for each end."
            for what, pause in (("starts", 0.020), ("ends", 0.0)):
                fd = os.open(f"{job.payload}/{what}-{job.id}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.write(fd, b".")
                os.close(fd)
                time.sleep(pause)

        @handler
        def hang_once(job):
            started = Path(f"{job.payload}/{job.id}.started")
            if not started.exists():
                started.touch()
                time.sleep(3600)
            started.with_suffix(".again").touch()
    """
}


def enqueue_counted(command: Command, how_many: int = JOBS) -> Path:
    counts = command.folder / "counts"
    counts.mkdir()
    command.enqueue_many([{"handler": "counted", "payload": str(counts)}] * how_many)
    return counts


def times(counts: Path, what: str, job: dict[str, Any]) -> int:
    path = counts / f"{what}-{job['id']}"
    return path.stat().st_size if path.exists() else 0


def ended(counts: Path) -> int:
    return len(list(counts.glob("ends-*")))


def workers_of(command: Command, run: Running) -> list[int]:
    return [pid for pid in command.processes() if pid not in (run.pid, run.forkserver())]


def kill_one(pids: list[int], chance: random.Random) -> bool:
    with contextlib.suppress(ProcessLookupError, IndexError):
        os.kill(chance.choice(pids), signal.SIGKILL)
        return True
    return False


def test_no_job_is_lost_when_workers_are_killed_at_random(command: Command) -> None:
    command.write(config=CONFIG, plugins=COUNTED)
    counts, chance, killed = enqueue_counted(command), random.Random(1), 0
    run = command.run("--drain")
    while ended(counts) < JOBS and run.code is None:
        wait_for(lambda: workers_of(command, run) or run.code is not None)
        killed += kill_one(workers_of(command, run), chance)
        time.sleep(0.050)  # the rate of the kills
    assert run.wait(60) == 0
    jobs = command.jobs()
    assert len(jobs) == JOBS
    assert {job["state"] for job in jobs} == {"succeeded"}
    for job in jobs:
        assert 1 <= times(counts, "starts", job) <= job["retries"] + 1, job
        assert [(error["cause"], error["signal"]) for error in job["errors"]] == [("crash", "SIGKILL")] * job["retries"]
    assert 0 < sum(job["retries"] for job in jobs) <= killed


def test_no_job_is_lost_when_the_forkserver_is_killed_again_and_again(command: Command) -> None:
    command.write(config=CONFIG, plugins=COUNTED)
    counts, killed = enqueue_counted(command), []
    run = command.run("--drain")
    while len(killed) < 5 and ended(counts) < JOBS * 3 // 4:
        forkserver = run.forkserver()
        if forkserver not in killed:
            os.kill(forkserver, signal.SIGKILL)
            killed.append(forkserver)
        wait_for(lambda: run.forkserver() not in killed or run.code is not None)
    assert run.wait(60) == 0
    jobs = command.jobs()
    assert [(job["state"], job["errors"], times(counts, "starts", job)) for job in jobs] == [
        ("succeeded", [], 1)
    ] * JOBS
    assert run.log.count("its workers keep running") == len(killed)


def test_no_job_is_lost_when_the_supervisor_is_killed_again_and_again(command: Command) -> None:
    command.write(config=CONFIG, plugins=COUNTED)
    counts, kills = enqueue_counted(command), 4
    for number in range(1, kills + 1):
        run = command.run()
        wait_for(lambda at_least=number * JOBS // 8: ended(counts) >= at_least)
        run.kill()
    run = command.run("--drain")
    assert run.wait(60) == 0
    jobs = command.jobs()
    assert [job["state"] for job in jobs] == ["succeeded"] * JOBS
    for job in jobs:
        assert times(counts, "starts", job) <= job["retries"] + 1 + kills, job
        assert {error["cause"] for error in job["errors"]} <= {"lease_expired"}
    again = sum(times(counts, "starts", job) - 1 for job in jobs)
    print(f"started again: {again} of {JOBS} jobs after {kills} kills")
    assert again <= kills * 4 * 5, "only what ran or was not settled yet may run again"


def test_no_job_is_lost_when_every_process_is_killed_at_random(command: Command) -> None:
    command.write(config=CONFIG, plugins=COUNTED)
    jobs_here = JOBS // 2
    counts, chance, kills = enqueue_counted(command, jobs_here), random.Random(2), 0
    pause = 0.050
    while (before := ended(counts)) < jobs_here:
        run = command.run("--drain")
        run.logged("forkserver started")
        give_up = time.monotonic() + 20 * pause
        while time.monotonic() < give_up and run.code is None:
            kill_one(list(command.processes()), chance)
            time.sleep(pause)
        run.process.kill()  # it may have been killed, or have exited by itself
        run.process.wait()
        kills += 1
        assert kills < 60, f"no way on: {ended(counts)} of {jobs_here}"
        if ended(counts) < before + 5:  # on a machine this busy no process is replaced so soon
            pause *= 1.5
    assert command.run("--drain").wait(60) == 0
    jobs = command.jobs()
    assert [job["state"] for job in jobs] == ["succeeded"] * jobs_here
    for job in jobs:
        assert 1 <= times(counts, "starts", job) <= job["retries"] + 1 + kills, job


def test_interrupted_jobs_start_again_at_once(command: Command) -> None:
    command.write(config="workers: {count: 8}\nlease: {ttl: 10m}\n", plugins=COUNTED)
    marks = command.folder / "marks"
    marks.mkdir()
    ids = [command.enqueue("hang_once", str(marks)) for _ in range(8)]
    run = command.run()
    wait_for(lambda: len(list(marks.glob("*.started"))) == len(ids))
    run.kill()
    restarted = time.time()
    command.run()
    wait_for(lambda: len(list(marks.glob("*.again"))) == len(ids))
    took = max(path.stat().st_mtime for path in marks.glob("*.again")) - restarted
    print(f"all interrupted jobs ran again {took:.2f}s after the restart")
    assert took < 15  # no job has waited for the end of its lease
    for id in ids:
        assert {error["cause"] for error in command.until(id, "succeeded")["errors"]} <= {"lease_expired"}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_no_process_survives_a_killed_supervisor(command: Command, start: str) -> None:
    command.write(config=f"workers: {{count: 2, start: {start}}}\n", plugins={"hanging.py": hanging.PLUGIN})
    marks = [command.folder / "one", command.folder / "two"]
    for mark in marks:
        command.enqueue("deep", str(mark))
    run = command.run()
    wait_for(lambda: all(mark.exists() and mark.read_text() for mark in marks))
    programs = {int(pid) for mark in marks for pid in mark.read_text().split()}
    assert len(programs) == 4
    assert programs < set(command.processes())
    run.kill()

    def nothing_left() -> None:
        assert command.processes() == {}

    wait_for(nothing_left, TIMEOUT)


def test_workers_of_a_killed_forkserver_are_killed_with_the_supervisor_too(command: Command) -> None:
    command.write(config="workers: {count: 1}\n", plugins={"hanging.py": hanging.PLUGIN})
    mark = command.folder / "started"
    command.enqueue("blocked", str(mark))
    run = command.run()
    wait_for(mark.exists)
    first = run.forkserver()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: run.forkserver() != first)
    run.kill()

    def nothing_left() -> None:
        assert command.processes() == {}

    wait_for(nothing_left)
