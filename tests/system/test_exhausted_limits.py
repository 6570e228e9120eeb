"""When descriptors or processes run out, that is logged, costs no job and nothing else, and passes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from supervisor.workers.interface import USUAL_TIMEOUTS
from supervisor.workers.parent.forkserver_client import ForkserverClient
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
        assert {report.how for report in reports} == {"could not be started: Too many open files"}
        await here.until(lambda: (open_fds(), fds_of(forkserver)) == (ours, theirs))
        resource.prlimit(forkserver, resource.RLIMIT_NOFILE, (hard, hard))
        after = await here.worker(7)
        for number, process in enumerate((before, after), 1):
            assert len(await here.run(process, lease(number, "noop"))) == 1
        assert here.forkserver_exits == []

    play(tmp_path, scene, start=start)


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
        assert (await here.end(here.fork(1))).how == "could not be started: Too many open files"
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
        assert [how for _pid, how in here.forkserver_exits] == [
            "killed by SIGKILL",
            "could not be started: Too many open files",
        ]

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
