"""A tracer, such as a debugger, withholds the exit of a process from its parent: nobody waits for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.workers.system import process_tree as proctree
from tests.system.command import Command, wait_for
from tests.system.real_workers import World, lease, play

TRACER = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
PTRACE_SEIZE = 0x4206
for pid in map(int, sys.argv[1:]):
    if libc.ptrace(PTRACE_SEIZE, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
print("traced", flush=True)
time.sleep(3600)
"""


@contextmanager
def traced(*pids: int) -> Iterator[None]:
    """Attach a tracer that never waits for these processes."""
    with subprocess.Popen([sys.executable, "-c", TRACER, *map(str, pids)], stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None and tracer.stdout.readline() == b"traced\n"
        try:
            yield
        finally:
            tracer.kill()


def test_the_exit_of_a_traced_worker_is_reported_and_holds_up_no_other(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process, other = await here.worker(1), await here.worker(2)
        pid = await here.begin(process, "hang")
        with traced(pid):
            process.kill()
            assert (await here.end(process)).how == "status unknown"
            assert len(await here.run(other, lease(2, "noop"))) == 1
            assert len(await here.run(await here.worker(3), lease(3, "noop"))) == 1
            assert here.forkserver_exits == []
        await here.until(lambda: proctree.stat(pid) is None)

    play(tmp_path, scene)


def test_traced_workers_and_a_traced_forkserver_that_are_killed_hold_up_nothing(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker(1)
        pid = await here.begin(process, "hang")
        (forkserver,) = here.forkservers
        with traced(forkserver, pid):
            os.kill(forkserver, signal.SIGKILL)
            await here.until(lambda: here.forkserver_exits == [(forkserver, "exited, status unknown")])
            process.kill()
            assert (await here.end(process)).how == "status unknown"
            assert len(await here.run(await here.worker(2), lease(2, "noop"))) == 1

    play(tmp_path, scene)


def test_a_traced_job_times_out_and_the_supervisor_ends_as_usual(command: Command) -> None:
    command.write(
        config="workers: {count: 1}\nretry: {max_retries: 0}\n",
        plugins={
            "jobs.py": """
                import os, pathlib, subprocess, sys, time
                from supervisor import handler

                @handler(timeout="3s")
                def traces_itself(job):
                    tracer = subprocess.Popen(["setsid", "--fork", sys.executable, "-c", job.payload, str(os.getpid())],
                        stdout=subprocess.PIPE)
                    assert tracer.stdout.readline() == b"traced\\n"
                    time.sleep(3600)

                @handler(timeout="3s")
                def hangs(job):
                    pathlib.Path("pid").write_text(str(os.getpid()))
                    time.sleep(3600)

                @handler
                def noop(job): pass
            """
        },
    )
    run = command.run()
    own = command.enqueue("traces_itself", TRACER)
    assert command.until(own, "failed")["errors"][-1]["cause"] == "timeout"
    pid = command.folder / "pid"
    held = command.enqueue("hangs")
    wait_for(lambda: pid.exists() and pid.read_text() != "")
    with traced(int(pid.read_text())):
        assert command.until(held, "failed")["errors"][-1]["cause"] == "timeout"
        command.until(command.enqueue("noop"), "succeeded")
        run.signal(signal.SIGTERM)
        assert run.wait() == 0
