"""The supervisor as the first process of a container, and under systemd."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.command import Command, Running, wait_for
from tests.system.privileges import require_root

JOBS = {
    "jobs.py": """
        import os, subprocess
        from supervisor import handler

        @handler
        def orphans(job):
            for _ in range(20):
                subprocess.run(["sh", "-c", "(sleep 0.2 &) ; (sleep 0.1; exit 3) & exit 0"], check=True)
            return subprocess.run(["sh", "-c", "exit 7"]).returncode

        @handler
        def pids(job):
            return [os.getpid(), os.getppid()]
    """
}
FIRST = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def of_the_supervisor(run: Running) -> list[int]:
    """Return its children, by their pids outside of the namespace."""
    first = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    assert len(first) == 1
    return [int(first[0]), *map(int, Path(f"/proc/{first[0]}/task/{first[0]}/children").read_text().split())]


def zombies(run: Running) -> list[str]:
    own = Path("/proc") / str(of_the_supervisor(run)[0])
    namespace = (own / "ns" / "pid").readlink()
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and (folder / "ns" / "pid").readlink() == namespace:
                stat = (folder / "stat").read_text()
                if stat.rpartition(")")[2].split()[0] == "Z":
                    found.append(stat)
        except OSError:
            continue
    return found


def test_a_supervisor_as_process_one_reaps_orphans_and_stops_on_term(command: Command) -> None:
    require_root("a pid namespace")
    command.write(config="workers: {count: 2}\n", plugins=JOBS)
    run = command.run(under=FIRST)
    ids = [command.enqueue("orphans") for _ in range(4)]
    for id in ids:
        assert command.until(id, "succeeded")["result"] == 7, "a handler waits for its own children"
    assert "pid=1 " in run.logged("supervisor started")

    first, forkserver = of_the_supervisor(run)
    # An orphan in the container becomes a child of process 1.
    subprocess.run(["nsenter", f"--target={first}", "--pid", "sh", "-c", "sleep 1 &"], check=True)
    assert len(of_the_supervisor(run)) == 3

    def none() -> None:
        assert of_the_supervisor(run) == [first, forkserver]
        assert zombies(run) == []

    wait_for(none)
    os.kill(of_the_supervisor(run)[0], signal.SIGTERM)
    assert run.wait() == 0
    assert command.left_behind() == {}


def test_a_new_run_in_a_container_recovers_the_jobs_of_the_killed_one(command: Command) -> None:
    require_root("a pid namespace")
    hang = """
        import os, time
        from supervisor import handler

        @handler
        def hang(job):
            if not os.path.exists("begun"):
                open("begun", "w").close()
                time.sleep(3600)
    """
    command.write(config="workers: {count: 1}\nretry: {backoff: {base: 100ms}}\n", plugins={"hang.py": hang})
    id = command.enqueue("hang")
    first = command.run(under=FIRST)
    wait_for((command.folder / "begun").exists)
    os.kill(of_the_supervisor(first)[0], signal.SIGKILL)
    first.wait()
    second = command.run(under=FIRST)
    command.until(id, "succeeded")
    second.logged("recovered")
    os.kill(of_the_supervisor(second)[0], signal.SIGTERM)
    assert second.wait() == 0


@contextmanager
def notified(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(15)
        yield receiver


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_notified_of_ready_watchdog_and_stopping(command: Command, tmp_path: Path, abstract: bool) -> None:
    name = f"supervisor-test-{command.mark}" if abstract else str(tmp_path / "notify")
    command.env["NOTIFY_SOCKET"] = "@" + name if abstract else name
    command.write(config="shutdown: {grace: 100s}\n", plugins=JOBS)
    with notified("\0" + name if abstract else name) as receiver:
        run = command.run()
        assert receiver.recv(100) == b"READY=1"
        run.logged("supervisor started")
        assert [receiver.recv(100), receiver.recv(100)] == [b"WATCHDOG=1"] * 2
        run.signal(signal.SIGTERM)
        message = receiver.recv(100)
        assert message == b"STOPPING=1" or receiver.recv(100) == b"STOPPING=1"
        assert receiver.recv(100) == b"EXTEND_TIMEOUT_USEC=160000000"
        assert run.wait() == 0


def test_a_notify_socket_without_a_reader_harms_nothing(command: Command, tmp_path: Path) -> None:
    command.env["NOTIFY_SOCKET"] = str(tmp_path / "nobody")
    command.write(plugins=JOBS)
    id = command.enqueue("pids")
    assert command.run("--drain").wait() == 0
    assert command.job(id)["state"] == "succeeded"


def test_a_program_of_a_job_cannot_notify_systemd_for_the_supervisor(command: Command, tmp_path: Path) -> None:
    command.env["NOTIFY_SOCKET"] = str(tmp_path / "notify")
    plugin = """
        import subprocess
        from supervisor import handler

        @handler
        def address(job):
            return subprocess.run(["sh", "-c", 'echo "$NOTIFY_SOCKET"'], capture_output=True, text=True).stdout
        """
    command.write(plugins={"address.py": plugin})
    id = command.enqueue("address")
    assert command.run("--drain").wait() == 0
    assert command.job(id)["result"] == "\n"
