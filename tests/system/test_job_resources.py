"""`nice` and `rlimits` of a handler hold for its jobs, and only for them."""

from __future__ import annotations

import shutil

import pytest

from tests.system.command import Command
from tests.system.privileges import require_root

PLUGIN = """
    import os, resource
    from supervisor import handler

    @handler
    def state(job):
        limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_NOFILE)]
        return [os.getpid(), os.getpriority(os.PRIO_PROCESS, 0), limits]

    @handler(rlimits={"memory": "100MB", "files": 256})
    def allocate(job):
        return len(bytearray(500_000_000))

    @handler(rlimits={"files": 64})
    def open_files(job):
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]

    @handler(rlimits={"cpu": "1s"})
    def burn(job):
        while True:
            pass

    @handler(nice=7)
    def nice(job):
        return [os.getpid(), os.getpriority(os.PRIO_PROCESS, 0)]
"""
CONFIG = "workers: {count: 1}\nretry: {max_retries: 0}\nhandlers: {nice: {nice: 9}}\n"


def test_a_job_past_its_limits_fails_and_the_next_job_has_none(command: Command) -> None:
    command.write(config=CONFIG, plugins={"p.py": PLUGIN})
    order = ["state", "allocate", "state", "open_files", "state", "burn", "state"]
    ids = [command.enqueue(handler) for handler in order]
    run = command.run("--drain")
    assert run.wait(60) == 0
    jobs = [command.job(id) for id in ids]
    first, memory, second, files, third, cpu, last = jobs
    assert first["result"] == second["result"] == third["result"]
    assert last["result"][1:] == first["result"][1:]
    assert memory["errors"][0]["type"] == "MemoryError"
    assert "job_resources" not in memory["errors"][0]["traceback"]
    assert (files["errors"][0]["type"], "Too many open files" in files["errors"][0]["message"]) == ("OSError", True)
    (error,) = cpu["errors"]
    assert (error["cause"], error["signal"]) == ("crash", "SIGXCPU")
    assert error["message"] == "its worker was killed by SIGXCPU: its CPU time is past rlimits.cpu"


@pytest.mark.parametrize("may_raise", [True, False])
def test_a_nice_job_runs_at_its_priority_and_the_next_one_at_that_of_the_worker(
    command: Command, may_raise: bool
) -> None:
    require_root("a change of capabilities")
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is not installed")
    command.write(config=CONFIG, plugins={"p.py": PLUGIN})
    ids = [command.enqueue(handler) for handler in ("state", "nice", "state", "nice", "state")]
    drop = ["--bounding-set", "-sys_nice"]
    run = command.run("--drain", under=[setpriv, *([] if may_raise else drop)])
    assert run.wait(60) == 0, run.log
    first, nice, second, again, last = [command.job(id)["result"] for id in ids]
    assert nice[1] == again[1] == 9
    assert first[1:] == second[1:] == last[1:]
    assert (first[0] == second[0] == last[0]) is may_raise
    assert ("exited: nice (it may not raise its priority again after its job)" in run.log) is not may_raise
    assert "crash" not in run.log
