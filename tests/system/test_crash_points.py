"""A supervisor killed between any two of its durable steps, and started again: every promise holds."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing, suppress
from typing import Any

import pytest

from supervisor.workers.system import process_tree as proctree
from tests.system import crash_points
from tests.system.command import Command, Running, wait_for

CONFIG = """
workers: {count: 2}
retry: {max_retries: 1, backoff: {base: 10ms, jitter: none}}
dlq: {sinks: [{type: file, name: a, path: a.jsonl}, {type: file, name: b, path: b.jsonl}]}
"""
PLUGIN = {
    "marked.py": """
        import os
        from supervisor import handler

        def mark(job):
            fd = os.open(f"{job.payload}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(fd, f"{job.id}\\n".encode())
            os.close(fd)

        @handler
        def works(job):
            mark(job)

        @handler
        def fails(job):
            mark(job)
            raise ValueError("never")
    """
}
LEAVES_A_PROGRAM = {
    "leaves.py": """
        import subprocess
        from supervisor import handler

        @handler
        def leaves(job):
            program = "echo $$ > program; exec sleep 3600"
            subprocess.run(["env", "-i", "setsid", "--fork", "sh", "-c", program], check=True)
    """
}
RECOVERIES = [point for point in crash_points.POINTS if "recovery" in point]
NOTIFIES = "other supervisors are about to be notified"
SERVING = [point for point in crash_points.POINTS if point not in (*RECOVERIES, NOTIFIES)]


def killed_when(point: str) -> list[str]:
    return [sys.executable, "-m", "tests.system.crash_points", point]


def run_until(command: Command, point: str, *arguments: str) -> Running:
    """Run `supervisor run --drain` until it kills itself at this point."""
    run = command.run("--drain", under=killed_when(point))
    assert run.wait(60) == -signal.SIGKILL, run.log
    assert f"{crash_points.MARK}: {point}" in run.log
    return run


def enqueue_both(command: Command) -> None:
    command.write(config=CONFIG, plugins=PLUGIN)
    marks = str(command.folder / "marks")
    command.enqueue_many([{"handler": handler, "payload": marks} for handler in ("works", "fails", "works", "fails")])


def starts(command: Command) -> Counter[int]:
    marks = command.folder / "marks"
    return Counter(map(int, marks.read_text().split())) if marks.exists() else Counter()


def whole_lines(command: Command, sink: str) -> list[tuple[int, int]]:
    """Return the (id, attempt) of each dead letter. At most one line may be torn, by a kill in the middle of it."""
    whole, torn = [], 0
    for line in (command.folder / f"{sink}.jsonl").read_text().splitlines():
        try:
            dead_letter = json.loads(line)
        except ValueError:
            torn += 1
        else:
            whole.append((dead_letter["id"], dead_letter["attempt"]))
    assert torn <= 1
    return whole


def assert_every_promise_was_kept(command: Command) -> None:
    jobs, started = command.jobs(), starts(command)
    assert [(job["id"], job["handler"], job["state"]) for job in reversed(jobs)] == [
        (1, "works", "succeeded"), (2, "fails", "failed"), (3, "works", "succeeded"), (4, "fails", "failed")
    ]  # fmt: skip
    for job in jobs:
        assert 1 <= job["attempt"] <= started[job["id"]], "an attempt was counted that never started"
    failed = {(job["id"], job["attempt"]) for job in jobs if job["state"] == "failed"}
    assert {job["dead_letter"] for job in jobs if job["state"] == "failed"} == {"delivered"}
    assert set(whole_lines(command, "a")) == set(whole_lines(command, "b")) == failed
    assert_database_is_whole(command)


def assert_database_is_whole(command: Command) -> None:
    with closing(sqlite3.connect(command.folder / "jobs.db")) as database:

        def rows(query: str) -> list[Any]:
            return database.execute(query).fetchall()

        assert rows("pragma integrity_check") == [("ok",)]
        assert rows("select state, queue, tier, n from counts where n != 0 order by 1, 2, 3") == rows(
            "select state, queue, tier, count(*) from jobs group by 1, 2, 3 order by 1, 2, 3"
        )
        assert rows("select * from supervisors") == []
    assert command.left_behind() == {}


@pytest.mark.parametrize("point", SERVING)
def test_every_promise_is_kept_by_a_supervisor_killed_when(command: Command, point: str) -> None:
    enqueue_both(command)
    run_until(command, point)
    assert command.run("--drain").wait(60) == 0
    assert_every_promise_was_kept(command)


@pytest.mark.parametrize("point", RECOVERIES)
def test_every_promise_is_kept_by_a_supervisor_killed_during_its_recovery_of_another_when(
    command: Command, point: str
) -> None:
    enqueue_both(command)
    run_until(command, "leases are held and not sent to a worker")
    run_until(command, point)
    assert command.run("--drain").wait(60) == 0
    assert_every_promise_was_kept(command)


def test_programs_of_a_lost_supervisor_end_although_a_supervisor_was_killed_as_it_recovered_that_one(
    command: Command,
) -> None:
    """The lost one was killed together with its forkserver, which would have ended them."""
    command.write(config=CONFIG, plugins=LEAVES_A_PROGRAM)
    run, file = command.run(), command.folder / "program"
    command.until(command.enqueue("leaves"), "succeeded")
    program = wait_for(lambda: int(file.read_text() or "0") if file.exists() else False)
    os.kill(run.forkserver(), signal.SIGKILL)
    run.kill()
    run_until(command, "a recovery has removed the row of an owner and its files are there")
    assert proctree.is_alive(program)
    try:
        assert command.run("--drain").wait(60) == 0
        assert not proctree.is_alive(program)
    finally:
        with suppress(ProcessLookupError):
            os.kill(program, signal.SIGKILL)


def test_a_client_killed_before_it_notifies_has_enqueued_nothing_and_blocks_nothing(command: Command) -> None:
    """It notifies before its commit: a supervisor that wakes finds nothing, and is notified again for the next job."""
    command.write(config=CONFIG, plugins=PLUGIN)
    works = ("enqueue", "works", json.dumps(str(command.folder / "marks")))
    ended = command.call(*works, under=killed_when(NOTIFIES))
    assert (ended.code, ended.out) == (-signal.SIGKILL, "")
    assert command.jobs() == []
    assert command.call(*works).code == 0
    assert command.run("--drain").wait(60) == 0
    assert [(job["state"], job["attempt"]) for job in command.jobs()] == [("succeeded", 1)]
    assert_database_is_whole(command)
