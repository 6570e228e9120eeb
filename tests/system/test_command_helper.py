"""Tests of the helper of all system tests: it finds what is left behind, and waits for facts."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.system.command import Command, wait_for

HELLO = {
    "hello.py": """
        import os, subprocess, time
        from pathlib import Path
        from supervisor import handler

        @handler
        def hello(job):
            print("hello", job.payload)
            return {"pid": os.getpid(), "payload": job.payload}

        @handler
        def hang(job):
            Path(job.payload).touch()
            time.sleep(3600)
    """
}


def test_a_drain_runs_all_jobs(command: Command) -> None:
    command.write(plugins=HELLO)
    ids = [command.enqueue("hello", number) for number in range(3)]
    run = command.run("--drain")
    assert run.wait() == 0
    assert [command.job(id)["result"]["payload"] for id in ids] == [0, 1, 2]
    assert {job["state"] for job in command.jobs()} == {"succeeded"}
    assert "supervisor stopped: exit code 0" in run.log


def test_a_run_serves_jobs_until_it_is_stopped(command: Command) -> None:
    command.write(plugins=HELLO)
    run = command.run()
    run.logged("supervisor started")
    id = command.enqueue("hello", "you")
    job = command.until(id, "succeeded")
    assert job["result"]["pid"] in command.processes()
    assert {run.pid, run.forkserver()} < set(command.processes())
    assert f"stdout job={id}" in run.logged("hello you")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert command.left_behind() == {}


def test_close_ends_a_run_that_the_test_left(command: Command) -> None:
    command.write(plugins=HELLO)
    mark = command.folder / "started"
    id = command.enqueue("hang", str(mark))
    run = command.run()
    wait_for(mark.exists)
    assert command.job(id)["state"] == "in_flight"
    command.close()
    assert run.code == 3
    assert (command.job(id)["state"], command.job(id)["retries"]) == ("ready", 0)


def test_call_returns_exit_code_and_output(command: Command) -> None:
    command.write(config="workrs: {count: 2}\n")
    ended = command.call("check")
    assert ended.code == 2
    assert "workrs" in ended.out + ended.err


def test_close_fails_if_a_process_is_left_behind_and_kills_it(tmp_path: Path) -> None:
    command = Command(tmp_path)
    ignores_term = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ignores_term], command.env, setsid=True)
    wait_for(lambda: pid in command.processes())
    with pytest.raises(AssertionError, match=r"left behind: .*time\.sleep"):
        command.close(timeout=0.0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_wait_for_raises_the_assertion_that_failed_last() -> None:
    counted = iter(range(10))

    def fact() -> None:
        assert next(counted) < 0, "not yet"

    with pytest.raises(AssertionError, match="not yet") as raised:
        wait_for(fact, timeout=0.0, every=0.0)
    assert raised.value.__notes__ == ["waited 0s"]
    assert wait_for(lambda: next(counted)) == 1
    started = time.monotonic()
    with pytest.raises(AssertionError, match="still False"):
        wait_for(lambda: False, timeout=0.01, every=0.001)
    assert time.monotonic() - started >= 0.01
