"""A program of a job that belongs to another user, which the supervisor may not kill: it is reported, and holds up nothing."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from supervisor.workers.system import process_tree as proctree
from tests.system.command import Command, wait_for
from tests.system.privileges import require_root

DROP_KILL = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_KILL = 24, 5
assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_KILL, 0, 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""
WITHOUT_KILL = [sys.executable, "-c", DROP_KILL]
"""Root without this capability may kill only processes of root."""
ALICE = 65_432

HANDLERS = f"""
    import pathlib, subprocess
    from supervisor import handler

    @handler(timeout="1s", max_retries=0)
    def as_alice(job):
        program = subprocess.Popen(
            ["sleep", "3600"], user={ALICE}, group={ALICE}, extra_groups=[], start_new_session=job.payload
        )
        pathlib.Path("part").write_text(str(program.pid))
        pathlib.Path("part").rename("pid")
        program.wait()

    @handler
    def noop(job): pass
"""


@pytest.mark.parametrize("session", [False, True], ids=["in its group", "in a session of its own"])
def test_a_program_of_another_user_that_outlives_a_timeout_is_reported_once_and_does_not_slow_the_stop(
    command: Command, session: bool
) -> None:
    require_root("a program of another user")
    command.write(config="workers: {count: 1}\n", plugins={"handlers.py": HANDLERS})
    run = command.run(under=WITHOUT_KILL)
    id, pid_file = command.enqueue("as_alice", session), command.folder / "pid"
    wait_for(pid_file.exists)
    pid = int(pid_file.read_text())
    try:
        survivor = f"process {pid} (sleep) of user {ALICE}"
        error = command.until(id, "failed")["errors"][-1]
        assert error["cause"] == "timeout"
        assert error["message"].endswith(f"killed; {survivor} goes on, since the supervisor may not kill it")
        assert f"has left {survivor} running" in run.logged(f"ran job {id} (as_alice)")
        command.until(command.enqueue("noop"), "succeeded")
        run.signal(signal.SIGTERM)
        assert run.wait(4.0) == 0
        assert proctree.is_alive(pid)
        assert run.log.count(f"has left {survivor} running") == 1
    finally:
        os.kill(pid, signal.SIGKILL)


def test_only_processes_that_can_be_killed_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def find() -> list[int]:
        looked.append(1)
        return [2**22 + 1]

    monkeypatch.setattr(proctree, "kill", lambda pid: False)
    proctree.end(find, 3600.0)
    assert len(looked) == 1
