"""A program that a job has left belongs to its worker, however it was started: it lives as long as that worker, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from supervisor.workers.system import process_tree as proctree
from tests.system.command import Command, wait_for
from tests.system.privileges import require_root
from tests.system.test_exhausted_limits import ORDINARY, USER
from tests.system.test_signals_process_one import FIRST, of_the_supervisor

JOBS = """
    import os, signal, subprocess, sys, time
    from pathlib import Path
    from supervisor import handler

    @handler
    def has_helper(job):
        "A helper without an exec, orphaned in a session of its own, answers late."
        answer, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                Path("helper").write_text(str(os.getpid()))
                while not os.path.exists("go"):
                    time.sleep(0.01)
                os.write(write, b"answer")
            os._exit(0)
        os.wait()
        os.close(write)
        return os.read(answer, 100).decode()

    @handler
    def programs(job):
        Path("running").touch()
        return subprocess.run(["sh", "-c", "while ! test -e go; do sleep 0.05; done; exit 5"]).returncode

    @handler
    def kill_worker(job):
        os.kill(os.getpid(), signal.SIGKILL)

    @handler
    def leave(job):
        "Leaves a program that has nothing from its worker: no variable, no session, no group, no parent."
        subprocess.run(["env", "-i", "setsid", "--fork", "sh", "-c", "echo $$ > left; exec sleep 3600"], check=True)

    @handler
    def supervise(job):
        subprocess.Popen([sys.executable, "-m", "supervisor", "run", "-c", job.payload], start_new_session=True)
"""


def pid_in(path: Path) -> int:
    return wait_for(lambda: int(path.read_text() or "0") if path.exists() else False)


def test_a_crash_of_one_worker_harms_no_helper_of_another(command: Command) -> None:
    command.write(config="workers: {count: 2}\nretry: {max_retries: 0}\n", plugins={"jobs.py": JOBS})
    run = command.run()
    id = command.enqueue("has_helper")
    pid_in(command.folder / "helper")
    command.until(command.enqueue("kill_worker"), "failed")
    wait_for(lambda: run.log.count(") started") >= 3)
    (command.folder / "go").touch()
    assert command.until(id, "succeeded")["result"] == "answer"


def test_a_forkserver_that_retires_harms_no_program_of_the_next(command: Command) -> None:
    command.write(config="workers: {count: 1}\nretry: {max_retries: 0}\n", plugins={"jobs.py": JOBS})
    run = command.run()
    old = run.forkserver()
    go = command.folder / "go"
    hold = command.enqueue("has_helper")
    pid_in(command.folder / "helper")
    run.signal(signal.SIGHUP)
    wait_for(lambda: run.forkserver() != old)
    id = command.enqueue("programs")
    wait_for((command.folder / "running").exists)
    assert proctree.is_alive(old)
    os.kill(pid_in(command.folder / "helper"), signal.SIGKILL)
    command.until(hold, "succeeded")
    wait_for(lambda: not proctree.is_alive(old))
    go.touch()
    assert command.until(id, "succeeded")["result"] == 5


def test_a_program_without_anything_of_its_worker_ends_after_the_forkserver_was_killed(command: Command) -> None:
    command.write(config="workers: {count: 1}\nretry: {max_retries: 0}\n", plugins={"jobs.py": JOBS})
    run = command.run()
    command.until(command.enqueue("leave"), "succeeded")
    left = pid_in(command.folder / "left")
    forkserver = run.forkserver()
    os.kill(forkserver, signal.SIGKILL)
    wait_for(lambda: run.forkserver() != forkserver)
    assert proctree.is_alive(left)
    command.until(command.enqueue("kill_worker"), "failed")
    try:
        wait_for(lambda: not proctree.is_alive(left), timeout=5)
    finally:
        os.kill(left, signal.SIGKILL)


def test_a_supervisor_that_a_job_has_started_ends_with_the_worker_of_the_job(command: Command) -> None:
    command.write(config="workers: {count: 1}\nretry: {max_retries: 0}\n", plugins={"jobs.py": JOBS})
    inner = command.folder / "inner"
    (inner / "plugins").mkdir(parents=True)
    (inner / "supervisor.yaml").write_text("workers: {count: 1}\n")
    command.run()
    command.until(command.enqueue("supervise", str(inner / "supervisor.yaml")), "succeeded")
    wait_for(lambda: len(command.processes()) == 6)  # two supervisors, each with a forkserver and a worker
    command.until(command.enqueue("kill_worker"), "failed")
    wait_for(lambda: len(command.processes()) == 3)
    assert not [line for line in command.processes().values() if str(inner) in line]


def test_limits_that_allow_no_mark_harm_nothing_and_what_is_left_ends_with_the_supervisor(command: Command) -> None:
    command.write(config="workers: {count: 2}\nretry: {max_retries: 0}\n", plugins={"jobs.py": JOBS})
    run = command.run(under=["prlimit", "--locks=100"])
    run.logged("the limit of file locks (ulimit -H -x) is too low to mark programs")
    id = command.enqueue("has_helper")
    pid_in(command.folder / "helper")
    command.until(command.enqueue("leave"), "succeeded")
    left = pid_in(command.folder / "left")
    command.until(command.enqueue("kill_worker"), "failed")
    wait_for(lambda: run.log.count(") started") >= 3)
    (command.folder / "go").touch()
    assert command.until(id, "succeeded")["result"] == "answer"
    assert proctree.is_alive(left)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert not proctree.is_alive(left)


@pytest.fixture
def shared() -> Iterator[Command]:
    """A command in a folder that is not below one of this user alone."""
    with TemporaryDirectory() as folder, closing(Command(Path(folder))) as command:
        yield command


def test_programs_are_found_where_processes_of_other_users_are_hidden(shared: Command) -> None:
    require_root("a pid namespace")
    command = shared
    command.env["PYTHONDONTWRITEBYTECODE"] = "1"
    command.write(config="workers: {count: 1}\nretry: {max_retries: 0}\n", plugins={"jobs.py": JOBS})
    ids = [command.enqueue("leave"), command.enqueue("kill_worker")]
    for path in (command.folder, *command.folder.rglob("*")):
        os.chown(path, USER, USER)
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh"]
    run = command.run(under=[*hidden, *ORDINARY])
    command.until(ids[0], "succeeded")
    left = pid_in(command.folder / "left")
    command.until(ids[1], "failed")
    wait_for(lambda: not proctree.is_alive(left))
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_the_exit_status_of_a_plugins_program_is_not_lost_where_the_supervisor_is_process_one(command: Command) -> None:
    require_root("a pid namespace")
    hook = """
        import subprocess, time
        from pathlib import Path
        from supervisor import hookimpl

        @hookimpl
        def supervisor_started(info):
            program = subprocess.Popen(["sh", "-c", "exit 3"], start_new_session=True)
            while not Path("go").exists():
                time.sleep(0.01)
            Path("status").write_text(str(program.wait()))
    """
    command.write(config="workers: {count: 1}\n", plugins={"hook.py": hook})
    run = command.run(under=FIRST)
    run.logged("supervisor started")
    first, *others = of_the_supervisor(run)
    for _ in range(3):  # the supervisor has reaped the orphans of others, and so has seen the program of its plugin
        subprocess.run(["nsenter", f"--target={first}", "--pid", "sh", "-c", "sleep 0.01 &"], check=True)
        wait_for(lambda: of_the_supervisor(run) == [first, *others])
    (command.folder / "go").touch()
    status = command.folder / "status"
    assert wait_for(lambda: status.read_text() if status.exists() else False) == "3"
    os.kill(first, signal.SIGTERM)
    assert run.wait() == 0
