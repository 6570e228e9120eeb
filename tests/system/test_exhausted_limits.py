"""No descriptors or no processes left: what can't be had is said, costs no job and nothing else, and is had again later."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from supervisor.workers.parent.forkserver_client import ForkserverClient
from supervisor.workers.system import process_tree as proctree
from supervisor.workers.system.orphans import end_programs_of
from tests.system.command import Command, wait_for
from tests.system.real_workers import World, fds_of, lease, open_fds, world

STRANGER = 54_321  # an ordinary user of whom no other process is
ORDINARY = [
    "setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups",
    "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override",
]  # fmt: skip


def play(folder: Path, scene: Callable[[World], Awaitable[None]], **options: object) -> None:
    async def run() -> None:
        async with world(folder, **options) as here:  # type: ignore[arg-type]
            await scene(here)

    asyncio.run(run())


def waits(forkserver: int) -> bool:
    now = proctree.stat(forkserver)
    return now is not None and now.state == "S"


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("room", [0, 3])
def test_a_nursery_without_room_for_the_channels_of_a_worker_lives_on(tmp_path: Path, start: str, room: int) -> None:
    async def scene(here: World) -> None:
        before = await here.worker(1)
        (forkserver,) = here.nurseries
        _, hard = resource.prlimit(forkserver, resource.RLIMIT_NOFILE)
        await here.until(lambda: waits(forkserver))
        ours, nurserys = open_fds(), fds_of(forkserver)
        resource.prlimit(forkserver, resource.RLIMIT_NOFILE, (nurserys + room, hard))
        deaths = [await here.death(here.backend.fork(number)) for number in range(2, 7)]
        assert {death.how for death in deaths} == {"could not be started: Too many open files"}
        await here.until(lambda: (open_fds(), fds_of(forkserver)) == (ours, nurserys))
        resource.prlimit(forkserver, resource.RLIMIT_NOFILE, (hard, hard))
        after = await here.worker(7)
        for number, process in enumerate((before, after), 1):
            assert len(await here.run(process, lease(number, "noop"))) == 1
        assert here.forkserver_exits == []

    play(tmp_path, scene, start=start)


def test_that_another_owner_is_gone_is_borne_without_room_to_look_for_its_programs() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        end_programs_of("somebody")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_that_nobody_could_watch_is_ended_at_once(tmp_path: Path) -> None:
    full = tmp_path / "full"

    async def scene(here: World) -> None:
        (forkserver,) = here.nurseries
        full.touch()
        assert (await here.death(here.backend.fork(1))).how == "could not be started: Too many open files"
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
def test_a_nursery_that_cannot_be_started_leaves_nothing_and_is_started_later(
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
            ForkserverClient(here.backend.loop, here.backend.options, here.backend, ())
        calls.clear()
        forkserver.kill()
        await here.until(lambda: len(here.nurseries) == 2)
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
    """A command in a folder of an ordinary user's, and what makes it that user's: root is held by no limit."""
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
                os.chown(path, STRANGER, STRANGER)
        yield command, under
        command.close()


def test_no_more_processes_for_a_while_cost_no_job_and_nothing_else(owned: tuple[Command, list[str]]) -> None:
    command, under = owned
    run = command.run(under=under)
    forkserver = run.forkserver()
    wait_for(lambda: run.log.count(") started") >= 2)
    limited = list(command.processes())
    limit_processes(limited, 1, under)
    dead, survivor = psutil.Process(forkserver).children()
    dead.kill()
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
    """The soft limit alone, as their own user, who may raise it again."""
    program = "import resource, sys\nfor pid in map(int, sys.argv[2:]):\n" \
        "  hard = resource.prlimit(pid, resource.RLIMIT_NPROC)[1]\n" \
        "  resource.prlimit(pid, resource.RLIMIT_NPROC, (int(sys.argv[1]), hard))\n"  # fmt: skip
    subprocess.run([*under, sys.executable, "-c", program, str(most), *map(str, pids)], check=True)
