"""Real worker processes without a pool: their events are recorded, and tests wait for facts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from supervisor.jobs import Lease, Policy
from supervisor.plugins.reports import SourceReport
from supervisor.workers.interface import (
    USUAL_TIMEOUTS,
    ExitReport,
    Reply,
    Timeouts,
    WorkerOptions,
    WorkerRecord,
    Written,
)
from supervisor.workers.parent.backend import ForkserverBackend
from supervisor.workers.parent.worker_process import ForkedWorker
from supervisor.workers.system import marks
from supervisor.workers.system import process_tree as proctree

TIMEOUT = 30.0
POLICY = Policy()
OPTIONS = WorkerOptions((), 10.0, "fork", 0.05, {}, 2_000_000, "owner")

HANDLERS = r'''
import ctypes, os, re, signal, subprocess, sys, time
from supervisor import handler, Reject, Retry

def mark(job):
    """Write to a file that the job has begun, and in which process."""
    with open(job.payload["begun"], "a") as file:
        file.write(f"{os.getpid()}\n")

@handler
def noop(job):
    pass

@handler
def echo(job):
    return job.payload

@handler
def hang(job):
    mark(job)
    time.sleep(3600)

@handler
def hold_gil(job):
    mark(job)
    ctypes.PyDLL(None).sleep(3600)
'''


@dataclass
class World:
    """All events so far."""

    backend: ForkserverBackend
    folder: Path
    reports: Sequence[SourceReport] = ()
    ready: list[Any] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    ended: dict[Any, ExitReport] = field(default_factory=dict)
    heartbeats: int = 0
    lines: list[tuple[str, int | None, str]] = field(default_factory=list)
    records: list[WorkerRecord] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unready: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    forkserver_exits: list[tuple[int, str]] = field(default_factory=list)
    forkservers: list[int] = field(default_factory=list)
    permits_at_end: Mapping[int, int] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _frame: int = 0

    # events of the forkserver

    def forkserver_exited(self, pid: int, how: str) -> None:
        self.forkserver_exits.append((pid, how))
        self.changed.set()

    def forkserver_started(self, backend: Any, pid: int, reports: Sequence[SourceReport]) -> None:
        self.forkservers.append(pid)
        self.reports = reports
        self.changed.set()

    def forkserver_output(self, written: Written) -> None:
        if isinstance(written, WorkerRecord):
            self.records.append(written)
        else:
            self.lines += [(written.stream, written.job_id, line) for line in written.lines]
        self.changed.set()

    # steps of a test

    async def until(self, fact: Callable[[], Any]) -> Any:
        """Wait for a fact. It is checked after every event, and at short intervals for facts outside."""
        deadline = time.monotonic() + TIMEOUT
        while not (value := fact()):
            assert time.monotonic() < deadline, f"never came true; so far {self}"
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), 0.02)
            except TimeoutError:
                pass
        return value

    def fork(self, number: int) -> Any:
        """Order a worker."""
        listener = Listener(self)
        listener.process = self.backend.fork(number, listener)
        return listener.process

    async def worker(self, number: int = 1) -> ForkedWorker:
        """Order a worker, and wait until it is ready or has ended."""
        process: ForkedWorker = self.fork(number)
        await self.until(lambda: process in self.ready or process in self.ended)
        return process

    def send(self, process: ForkedWorker, *leases: Lease) -> int:
        self._frame = (self._frame + 1) & 255
        process.send(self._frame, leases)
        return self._frame

    async def run(self, process: ForkedWorker, *leases: Lease) -> list[Reply]:
        """Send one frame and wait until every job of it has a reply."""
        before = len(self.replies)
        self.send(process, *leases)
        await self.until(lambda: len(self.replies) >= before + len(leases))
        return self.replies[before:]

    async def begin(self, process: ForkedWorker, name: str, job_id: int = 1, **payload: Any) -> int:
        """Send one job and wait until it has begun; return its process id."""
        begun = self.folder / f"begun-{job_id}"
        self.send(process, lease(job_id, name, {"begun": str(begun), **payload}))
        await self.until(lambda: begun.exists() and begun.read_text())
        return int(begun.read_text())

    async def end(self, process: ForkedWorker) -> ExitReport:
        """Wait until a worker has ended."""
        report: ExitReport = await self.until(lambda: self.ended.get(process))
        return report

    def lines_of(self, job_id: int | None, stream: str) -> list[str]:
        return [line for where, job, line in self.lines if job == job_id and where == stream]


class Listener:
    """Records the events of one worker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.process: Any = None

    def ready(self) -> None:
        self._world.ready.append(self.process)
        self._world.changed.set()

    def replied(self, replies: Sequence[Reply]) -> None:
        self._world.replies += replies
        self._world.changed.set()

    def heartbeat(self) -> None:
        self._world.heartbeats += 1
        self._world.changed.set()

    def output(self, written: Written) -> None:
        self._world.forkserver_output(written)

    def warn(self, message: str) -> None:
        self._world.warnings.append(message)
        self._world.changed.set()

    def channel_broken(self, why: str) -> None:
        self._world.broken.append(why)
        self._world.changed.set()

    def not_ready(self, why: str) -> None:
        self._world.unready.append(why)
        self.process.kill()

    def exited(self) -> None:
        assert self.process not in self._world.ended

    def ended(self, report: ExitReport) -> None:
        before = self._world.ended.get(self.process)
        assert before is None or (before.stuck is not None and report.stuck is None)
        self._world.permits_at_end = self.process.reclaim()
        self._world.ended[self.process] = report
        self._world.changed.set()


def lease(job_id: int, handler: str, payload: Any = None, **fields: Any) -> Lease:
    """`payload` is a value, or a text that may be JSON."""
    text = payload if isinstance(payload, str) else orjson.dumps(payload).decode()
    return Lease(job_id, 1, handler, "default", text, None, 0, 0, 0, 0, 0, POLICY)._replace(**fields)


@asynccontextmanager
async def world(
    folder: Path,
    handlers: str = "",
    *,
    other: Mapping[str, str] = {},
    timeouts: Timeouts = USUAL_TIMEOUTS,
    **options: Any,
) -> AsyncIterator[World]:
    """A forkserver with the handlers above and these, and with other plugin files. Afterwards no process and no descriptor is left."""
    plugins = folder / "plugins"
    plugins.mkdir()
    (plugins / "jobs.py").write_text(HANDLERS + handlers)
    for name, text in other.items():
        (plugins / name).write_text(text)
    fds, before = open_fds(), set(proctree.children(os.getpid()))
    loop = asyncio.get_running_loop()
    owner = f"test-{os.getpid()}-{time.monotonic_ns()}"
    settings = replace(OPTIONS, plugins=(str(plugins),), owner=owner, **options)
    here = World(None, folder)  # type: ignore[arg-type]
    backend = ForkserverBackend(settings, here, loop, timeouts)
    here.backend = backend
    try:
        here.reports = await backend.start()
        yield here
    finally:
        await backend.stop()
    left = [(pid, proctree.stat(pid)) for pid in proctree.children(os.getpid()) if pid not in before]
    assert left == [], f"left behind: {left}"
    assert list(marks.marked(owner)) == []
    assert open_fds() == fds


def open_fds() -> int:
    return fds_of(os.getpid())


def fds_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def gone(pid: int) -> bool:
    return not proctree.is_alive(pid)


def play(folder: Path, scene: Callable[[World], Awaitable[None]], handlers: str = "", **options: Any) -> None:
    """Run a scene in a world of its own."""

    async def run() -> None:
        async with world(folder, handlers, **options) as here:
            await scene(here)

    asyncio.run(run())
