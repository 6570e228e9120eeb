"""The helper of all system tests is itself to be trusted: it sees what is left, and it waits for facts."""

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
            return {"pid": os.getpid(), "said": job.payload}

        @handler
        def hang(job):
            Path(job.payload).touch()
            time.sleep(3600)
    """
}


def test_drains_what_is_enqueued(command: Command) -> None:
    command.write(plugins=HELLO)
    ids = [command.enqueue("hello", number) for number in range(3)]
    run = command.run("--drain")
    assert run.wait() == 0
    assert [command.job(id)["result"]["said"] for id in ids] == [0, 1, 2]
    assert {job["state"] for job in command.jobs()} == {"succeeded"}
    assert "supervisor stopped: exit code 0" in run.log


def test_serves_until_it_is_told_to_stop(command: Command) -> None:
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


def test_ends_what_the_test_left_running(command: Command) -> None:
    command.write(plugins=HELLO)
    mark = command.folder / "started"
    id = command.enqueue("hang", str(mark))
    run = command.run()
    wait_for(mark.exists)
    assert command.job(id)["state"] == "in_flight"
    command.close()
    assert run.code == 3
    assert (command.job(id)["state"], command.job(id)["retries"]) == ("ready", 0)


def test_a_command_that_ends_gives_its_code_and_what_it_said(command: Command) -> None:
    command.write(config="workrs: {count: 2}\n")
    ended = command.call("check")
    assert ended.code == 2
    assert "workrs" in ended.out + ended.err


def test_what_is_left_behind_fails_the_test_and_is_ended(tmp_path: Path) -> None:
    command = Command(tmp_path)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", deaf], command.env, setsid=True)
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
    assert raised.value.__notes__ == ["still so after 0s"]
    assert wait_for(lambda: next(counted)) == 1
    started = time.monotonic()
    with pytest.raises(AssertionError, match="not so"):
        wait_for(lambda: False, timeout=0.01, every=0.001)
    assert time.monotonic() - started >= 0.01
