"""Tests of the helper of all system tests: it finds what is left behind, and waits for facts."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.system.command import Command, Running, wait_for

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


def end_before_a_killed_run_is_found(command: Command) -> tuple[Running, Running]:
    """Return a run that was killed and a later one, the last, which ended before it looked for owners that are gone."""
    command.write(plugins=HELLO)
    killed = command.run()
    killed.logged("supervisor started")
    killed.kill()
    (command.folder / "refused.yaml").write_text("workrs: 1\n")
    last = command.run(config="refused")
    assert last.wait() == 2
    return killed, last


def test_close_lets_one_more_start_remove_the_files_of_a_killed_run(command: Command) -> None:
    killed, _ = end_before_a_killed_run_is_found(command)
    left = command.left_behind()["files"]
    assert [(f"-{killed.pid}-" in name, Path(name).suffix) for name in left] == [(True, ".lock"), (True, ".sock")]
    waiting = command.enqueue("hello")
    command.close()
    assert command.left_behind() == {}
    assert command.job(waiting)["state"] == "ready"


def test_close_fails_if_one_more_start_does_not_remove_the_files_of_a_killed_run(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_before_a_killed_run_is_found(command)
    with monkeypatch.context() as patch, pytest.raises(AssertionError, match=r"left behind: .*\.lock"):
        patch.setattr(command, "_start_once_more", lambda: None)
        command.close(timeout=0.0)


def test_close_fails_if_a_run_that_was_not_killed_leaves_a_file(command: Command) -> None:
    _, last = end_before_a_killed_run_is_found(command)
    file = command.folder / "jobs.db.notify" / f"host-{last.pid}-0123456789abcdef.lock"
    file.touch()
    with pytest.raises(AssertionError, match=rf"left behind: {{'files': \['{file.name}'\]}}"):
        command.close(timeout=0.0)
    file.unlink()


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
