"""Who is blamed when a job of an async worker blocks the event loop, and jobs beside it reach their deadlines."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from supervisor.workers.system.linux import LOOP_SIGNAL
from tests.system.command import Command, wait_for

CONFIG = """
workers: {count: 1, async: {concurrency: 20, cancel_grace: 300ms}}
retry: {max_retries: 0}
log: {level: info}
"""
PLUGIN = """
    import asyncio, ctypes, os, pathlib, re, sqlite3, time
    from supervisor import handler

    async def begin(name):
        pathlib.Path(name).touch()
        while not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)

    @handler(timeout="2s")
    async def neighbour():
        pathlib.Path("neighbour").touch()
        while not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0 if pathlib.Path("again").exists() else 60)

    def sleep_here():
        pathlib.Path("again").touch()
        time.sleep(3600)

    @handler(timeout="5m")
    async def in_task():
        await begin("blocker")
        sleep_here()

    @handler(timeout="5m")
    async def in_subtask():
        await begin("blocker")
        async def part():
            sleep_here()
        async with asyncio.TaskGroup() as group:
            group.create_task(part())

    @handler(timeout="5m")
    async def in_a_query():
        await begin("blocker")
        pathlib.Path("again").touch()
        numbers = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000000000000)"
        sqlite3.connect(":memory:").execute(numbers + " select count(*) from n").fetchone()

    @handler(timeout="5m")
    async def in_an_expression():
        await begin("blocker")
        pathlib.Path("again").touch()
        re.fullmatch("(a*)*b", "a" * 60)

    @handler(timeout="5m")
    async def in_callback():
        await begin("blocker")
        if not pathlib.Path("again").exists():
            asyncio.get_running_loop().call_soon(sleep_here)
            await asyncio.sleep(3600)

    @handler(timeout="5m")
    async def with_the_gil():
        await begin("blocker")
        if not pathlib.Path("again").exists():
            pathlib.Path("again").touch()
            hang()

    def hang():
        lock = ctypes.create_string_buffer(128)  # a mutex: no signal ends the wait for it
        ctypes.PyDLL(None).pthread_mutex_lock(lock)
        ctypes.PyDLL(None).pthread_mutex_lock(lock)

    @handler(timeout="5m", heartbeat_timeout="1s")
    async def hangs():
        await begin("blocker")
        pathlib.Path("again").touch()
        hang()

    @handler(timeout="5m", heartbeat_timeout="1s")
    async def beside():
        await neighbour()

    @handler(timeout="5m")
    async def in_short_steps():
        pathlib.Path("steps").touch()
        for _ in range(60):
            time.sleep(0.1)
            await asyncio.sleep(0)

    @handler(timeout="3s")
    async def late(job):
        pathlib.Path(f"late {job.id}").write_text(f"{os.getpid()}\\n")
        await asyncio.sleep(3600)
"""


@pytest.fixture
def blocked(command: Command) -> Any:
    """Run a job of this handler beside jobs whose deadlines come while it blocks the loop; return it once it has ended."""

    def blocked(handler: str, state: str) -> dict[str, Any]:
        command.write(config=CONFIG, plugins={"p.py": PLUGIN})
        blocker = command.enqueue(handler)
        neighbours = [command.enqueue("neighbour") for _ in range(3)]
        run = command.run()
        wait_for(lambda: (command.folder / "blocker").exists() and (command.folder / "neighbour").exists())
        (command.folder / "go").touch()
        job = command.until(blocker, state, timeout=60)
        for id in neighbours:
            innocent = command.until(id, "succeeded", timeout=60)
            assert (innocent["retries"], innocent["errors"]) == (0, [])
        job["log"] = run.log
        return job

    return blocked


@pytest.mark.parametrize("handler", ["in_task", "in_subtask", "in_a_query", "in_an_expression"])
def test_a_job_that_blocks_the_loop_past_the_deadline_of_others_is_blamed_and_these_run_again(
    blocked: Any, handler: str
) -> None:
    (error,) = blocked(handler, "failed")["errors"]
    assert error["cause"] == "timeout"
    assert error["message"].startswith("blocked the event loop of its worker for ")
    assert "s, past the end of the timeout of job " in error["message"]
    assert handler in error["stack"] or "sleep_here" in error["stack"]


@pytest.mark.parametrize("handler", ["in_callback", "with_the_gil"])
def test_if_it_is_not_known_by_which_job_the_loop_is_blocked_each_runs_again_alone(blocked: Any, handler: str) -> None:
    job = blocked(handler, "succeeded")
    assert (job["retries"], job["errors"]) == (0, [])
    assert "no job is known to block it" in job["log"]


def test_a_job_that_blocks_the_loop_again_and_again_for_a_moment_is_not_blamed(command: Command) -> None:
    command.write(config=CONFIG, plugins={"p.py": PLUGIN})
    id = command.enqueue("in_short_steps")
    late = [command.enqueue("late") for _ in range(3)]
    run = command.run()
    for each in late:
        (error,) = command.until(each, "failed", timeout=60)["errors"]
        assert (error["cause"], error["message"]) == ("timeout", "still running after its timeout of 3s; cancelled")
    job = command.until(id, "succeeded", timeout=60)
    assert (job["retries"], job["errors"]) == (0, [])
    assert "killed" not in run.log


def test_a_worker_without_a_heartbeat_costs_only_the_job_that_has_none_alone(command: Command) -> None:
    command.write(config=CONFIG, plugins={"p.py": PLUGIN})
    blocker = command.enqueue("hangs")
    neighbours = [command.enqueue("beside") for _ in range(3)]
    command.run()
    wait_for(lambda: (command.folder / "blocker").exists() and (command.folder / "neighbour").exists())
    (command.folder / "go").touch()
    (error,) = command.until(blocker, "failed", timeout=60)["errors"]
    assert error["cause"] == "heartbeat_lost"
    for id in neighbours:
        innocent = command.until(id, "succeeded", timeout=60)
        assert (innocent["retries"], innocent["errors"]) == (0, [])


def is_pending(pid: int, number: int) -> bool:
    """Return whether the signal was sent to the process, which has not taken it yet."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return bool(int(fields["ShdPnd"], 16) >> (number - 1) & 1)


def test_a_worker_that_is_stopped_for_a_time_is_not_killed(command: Command) -> None:
    command.write(config=CONFIG, plugins={"p.py": PLUGIN})
    late = [command.enqueue("late") for _ in range(3)]
    run = command.run()

    def running() -> int:
        files = [command.folder / f"late {id}" for id in late]
        assert all(file.exists() and file.read_text().endswith("\n") for file in files)
        return int(files[0].read_text())

    worker = wait_for(running)  # all of them: one alone would be killed
    os.kill(worker, signal.SIGSTOP)
    try:
        # Past the timeout and the grace, the supervisor asks the loop by a signal, which a stopped process does not take.
        wait_for(lambda: is_pending(worker, LOOP_SIGNAL))
    finally:
        os.kill(worker, signal.SIGCONT)
    for each in late:
        (error,) = command.until(each, "failed", timeout=60)["errors"]
        assert (error["cause"], error["message"]) == ("timeout", "still running after its timeout of 3s; cancelled")
    assert "killed" not in run.log and "blocks the event loop" not in run.log
