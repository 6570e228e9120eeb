"""When descriptors or processes run out, that is logged, costs no job and nothing else, and passes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from supervisor.text.os_errors import DESCRIPTOR_LIMITS
from supervisor.workers.interface import USUAL_TIMEOUTS
from supervisor.workers.parent import forkserver_client
from supervisor.workers.parent.forkserver_client import ForkserverClient
from supervisor.workers.parent.worker_process import ForkedWorker
from supervisor.workers.system import process_tree as proctree
from supervisor.workers.system.orphans import end_programs_of
from tests.system.command import Command, wait_for
from tests.system.real_workers import World, fds_of, lease, open_fds, play

USER = 54_321  # an ordinary user without other processes
ORDINARY = [
    "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups",
    "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override",
]  # fmt: skip


def waits(forkserver: int) -> bool:
    now = proctree.stat(forkserver)
    return now is not None and now.state == "S"


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("room", [0, 3])
def test_a_forkserver_without_room_for_the_channels_of_a_worker_keeps_running(
    tmp_path: Path, start: str, room: int
) -> None:
    async def scene(here: World) -> None:
        before = await here.worker(1)
        (forkserver,) = here.forkservers
        _, hard = resource.prlimit(forkserver, resource.RLIMIT_NOFILE)
        await here.until(lambda: waits(forkserver))
        ours, theirs = open_fds(), fds_of(forkserver)
        resource.prlimit(forkserver, resource.RLIMIT_NOFILE, (theirs + room, hard))
        reports = [await here.end(here.fork(number)) for number in range(2, 7)]
        how = f"Too many open files: this process may have {theirs + room} descriptors ({DESCRIPTOR_LIMITS})"
        assert {report.how for report in reports} == {f"could not be started: {how}"}
        await here.until(lambda: (open_fds(), fds_of(forkserver)) == (ours, theirs))
        resource.prlimit(forkserver, resource.RLIMIT_NOFILE, (hard, hard))
        after = await here.worker(7)
        for number, process in enumerate((before, after), 1):
            assert len(await here.run(process, lease(number, "noop"))) == 1
        assert here.forkserver_exits == []

    play(tmp_path, scene, start=start)


@contextmanager
def descriptors_up_to(soft: int) -> Iterator[None]:
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


@contextmanager
def all_taken_but(left: int) -> Iterator[None]:
    """Take all descriptors of this process, up to a low limit."""
    taken: list[int] = []
    with descriptors_up_to(open_fds() + 50):
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            for _ in range(left):
                os.close(taken.pop())
            yield
        finally:
            for fd in taken:
                os.close(fd)


def test_as_many_workers_start_as_there_are_descriptors_for_and_the_forkserver_is_not_blamed(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        workers: list[ForkedWorker] = []
        with descriptors_up_to(open_fds() + 300):
            with suppress(OSError):
                while True:
                    workers.append(here.fork(len(workers) + 1))
            await here.until(lambda: all(process in here.ready for process in workers))
            assert len(workers) >= 20
            assert len(await here.run(workers[-1], lease(1, "noop"))) == 1
        assert here.forkserver_exits == [] and here.ended == {}

    play(tmp_path, scene)


@pytest.mark.parametrize("left", [0, 1], ids=["none is left for its pidfd", "none is left to read its pidfd"])
def test_a_worker_whose_pidfd_finds_no_room_is_ended_and_the_forkserver_is_not_blamed(
    tmp_path: Path, left: int
) -> None:
    async def scene(here: World) -> None:
        before = await here.worker(1)
        (forkserver,) = here.forkservers
        process = here.fork(2)
        with all_taken_but(left):
            await here.until(lambda: process.start_error)
        assert (await here.end(process)).how.startswith("could not be started: Too many open files")
        await here.until(lambda: proctree.children(forkserver) == [before.pid])
        after = await here.worker(3)
        for number, worker in enumerate((before, after), 1):
            assert len(await here.run(worker, lease(number, "noop"))) == 1
        assert here.forkserver_exits == []

    play(tmp_path, scene)


def test_orders_wait_while_their_user_has_too_many_descriptors_on_their_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, refused = socket.send_fds, []

    def send_fds(*arguments: Any) -> int:
        if not refused:
            refused.append(arguments)
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
        return really(*arguments)

    async def scene(here: World) -> None:
        monkeypatch.setattr(forkserver_client, "send_fds", send_fds)
        assert len(await here.run(await here.worker(1), lease(1, "noop"))) == 1
        assert refused and here.forkserver_exits == []

    play(tmp_path, scene)


LIMITS = """
import resource
from supervisor import handler

@handler
def descriptors(job):
    return resource.getrlimit(resource.RLIMIT_NOFILE)
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_supervisor_raises_its_limit_on_descriptors_and_its_workers_keep_theirs(
    command: Command, start: str
) -> None:
    command.write(config=f"workers: {{count: 1, start: {start}}}\n", plugins={"limits.py": LIMITS})
    job = command.enqueue("descriptors")
    run = command.run(under=["prlimit", "--nofile=300:900"])
    assert command.until(job, "succeeded")["result"] == [300, 900]
    assert resource.prlimit(run.pid, resource.RLIMIT_NOFILE) == (900, 900)
    assert resource.prlimit(run.forkserver(), resource.RLIMIT_NOFILE) == (300, 900)


def test_more_workers_than_there_are_descriptors_for_are_a_mistake_of_the_config(command: Command) -> None:
    command.write(config="workers: {count: 60}\n", plugins={"limits.py": LIMITS})
    sentence = (
        "workers.count: 60 workers can't all start, since this process may have 600 descriptors: raise the hard limit "
        f"({DESCRIPTOR_LIMITS}) to 1300, or set workers.count to at most 25"
    )
    checked = command.call("check", under=["prlimit", "--nofile=500:600"])
    assert (checked.code, checked.err) == (2, f"Error: {sentence}\n1 mistake\n")
    run = command.run(under=["prlimit", "--nofile=500:600"])
    run.logged(sentence)
    wait_for(lambda: run.log.count(") started") >= 50)
    run.logged(
        "could not be started: its channels can't be opened: Too many open files: this process may have 600 descriptors"
    )
    assert run.log.count("could not be started") == 1
    assert run.log.count("forkserver started") == 1


def test_check_warns_if_a_reload_has_to_wait_for_descriptors(command: Command) -> None:
    command.write(config="workers: {count: 40}\n", plugins={"limits.py": LIMITS})
    checked = command.call("check", under=["prlimit", "--nofile=500:600"])
    assert checked.code == 0
    assert "Warning: workers.count: 40 workers can't all be replaced at once in a reload" in checked.err


def test_an_owner_that_has_ended_is_handled_without_descriptors_to_look_for_its_programs() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        end_programs_of("somebody")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_that_could_not_be_watched_is_ended_at_once(tmp_path: Path) -> None:
    full = tmp_path / "full"

    async def scene(here: World) -> None:
        (forkserver,) = here.forkservers
        full.touch()
        assert (await here.end(here.fork(1))).how.startswith("could not be started: Too many open files")
        assert proctree.children(forkserver) == []
        full.unlink()
        assert len(await here.run(await here.worker(2), lease(1, "noop"))) == 1
        assert here.forkserver_exits == []

    plugin = f"""
import errno, os
really = os.pidfd_open
def pidfd_open(pid):
    if os.path.exists({str(full)!r}):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return really(pid)
os.pidfd_open = pidfd_open
"""
    play(tmp_path, scene, other={"full.py": plugin})


@pytest.mark.parametrize(("fails", "nth"), [("pipe2", 3), ("pidfd_open", 1)])
def test_a_forkserver_that_cannot_be_started_leaves_nothing_and_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, nth: int
) -> None:
    really = getattr(os, fails)
    calls: list[int] = []

    def fail_once(*arguments: int) -> object:
        calls.append(0)
        if len(calls) == nth:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return really(*arguments)

    async def scene(here: World) -> None:
        forkserver = here.backend._forkserver
        assert forkserver is not None
        with open_fds_unchanged(), pytest.raises(OSError, match="Too many open files"):
            monkeypatch.setattr(os, fails, fail_once)
            ForkserverClient(here.backend.loop, here.backend.options, here.backend, (), USUAL_TIMEOUTS)
        calls.clear()
        forkserver.kill()
        await here.until(lambda: len(here.forkservers) == 2)
        killed, not_started = [how for _pid, how in here.forkserver_exits]
        assert killed == "killed by SIGKILL"
        assert not_started.startswith("could not be started: Too many open files")

    play(tmp_path, scene)


@contextmanager
def open_fds_unchanged() -> Iterator[None]:
    before = open_fds(), len(proctree.children(os.getpid()))
    yield
    assert (open_fds(), len(proctree.children(os.getpid()))) == before


@pytest.fixture
def owned() -> Iterator[tuple[Command, list[str]]]:
    """A command in a folder of an ordinary user, and the arguments to run it as that user: no limit applies to root."""
    with TemporaryDirectory() as folder:
        command = Command(Path(folder))
        command.env["PYTHONDONTWRITEBYTECODE"] = "1"
        command.write(
            config="workers: {count: 2}\n",
            plugins={
                "pids.py": "import os\nfrom supervisor import handler\n@handler\ndef pid(job): return os.getpid()\n"
            },
        )
        under = ORDINARY if os.geteuid() == 0 else []
        if under:
            for path in (command.folder, *command.folder.rglob("*")):
                os.chown(path, USER, USER)
        yield command, under
        command.close()


@pytest.mark.parametrize("most", range(1, 7))
def test_a_start_without_processes_and_threads_ends_with_one_message(
    owned: tuple[Command, list[str]], most: int
) -> None:
    command, under = owned
    run = command.run(under=[*under, "prlimit", f"--nproc={most}"])
    assert run.wait() == 1
    message = run.log.splitlines()[-1]
    assert message.startswith("Error: ") and f"the limit of {most} on processes and threads is reached" in message
    assert "Traceback" not in run.log


def test_check_needs_no_thread(owned: tuple[Command, list[str]]) -> None:
    command, under = owned
    checked = command.call("check", under=[*under, "prlimit", "--nproc=1"])
    assert checked.code == 2
    assert "Error: no forkserver could be started" in checked.err and "Traceback" not in checked.err


def test_a_process_ends_in_time_without_a_thread_that_ends_it(owned: tuple[Command, list[str]]) -> None:
    command, under = owned
    program = "import atexit, time; from supervisor.workers.system.interpreter import end_within; " \
        "atexit.register(time.sleep, 60); end_within(0.1, 7)"  # fmt: skip
    ended = subprocess.run([*under, "prlimit", "--nproc=1", sys.executable, "-c", program], env=command.env,
                           cwd=command.folder, timeout=30)  # fmt: skip
    assert ended.returncode == 7


def test_a_worker_without_a_thread_for_its_heartbeat_is_not_started_and_the_next_one_is(tmp_path: Path) -> None:
    full = tmp_path / "full"

    async def scene(here: World) -> None:
        full.touch()
        report = await here.end(here.fork(1))
        assert report.how.startswith("could not be started: no thread for its heartbeat: the limit")
        assert (report.pid, here.broken, here.lines) == (0, [], [])
        full.unlink()
        assert len(await here.run(await here.worker(2), lease(1, "noop"))) == 1

    plugin = f"""
import os
from supervisor.workers.child import heartbeat
really = heartbeat.start_new_thread
def start_new_thread(*arguments):
    if os.path.exists({str(full)!r}):
        raise RuntimeError("can't start new thread")
    return really(*arguments)
heartbeat.start_new_thread = start_new_thread
"""
    play(tmp_path, scene, other={"full.py": plugin})


def test_a_lack_of_processes_for_a_while_costs_no_job_and_nothing_else(owned: tuple[Command, list[str]]) -> None:
    command, under = owned
    run = command.run(under=under)
    forkserver = run.forkserver()
    wait_for(lambda: run.log.count(") started") >= 2)
    limited = list(command.processes())
    limit_processes(limited, 1, under)
    killed, survivor = psutil.Process(forkserver).children()
    killed.kill()
    run.logged("could not be started: Resource temporarily unavailable")
    (command.folder / "jobs.jsonl").write_text('{"handler": "pid"}\n' * 20)
    subprocess.run([*under, *command.arguments("enqueue", "--file", "jobs.jsonl")], cwd=command.folder, check=True,
                   env=command.env)  # fmt: skip
    wait_for(lambda: [job["result"] for job in command.jobs("--state", "succeeded")] == [survivor.pid] * 20)
    survivor.kill()
    os.kill(forkserver, signal.SIGKILL)
    run.logged("forkserver could not be started: Resource temporarily unavailable")
    limit_processes([run.pid], resource.getrlimit(resource.RLIMIT_NPROC)[0], under)
    wait_for(lambda: run.forkserver() != forkserver)
    wait_for(lambda: len(psutil.Process(run.forkserver()).children()) == 2)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def limit_processes(pids: list[int], most: int, under: list[str]) -> None:
    """Set only the soft limit, as the user of these processes, who may raise it again."""
    program = "import resource, sys\nfor pid in map(int, sys.argv[2:]):\n" \
        "  hard = resource.prlimit(pid, resource.RLIMIT_NPROC)[1]\n" \
        "  resource.prlimit(pid, resource.RLIMIT_NPROC, (int(sys.argv[1]), hard))\n"  # fmt: skip
    subprocess.run([*under, sys.executable, "-c", program, str(most), *map(str, pids)], check=True)
