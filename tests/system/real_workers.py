"""Drives children.ForkserverBackend with real processes: a listener that records, and waits for facts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from supervisor.jobs import Lease, Policy
from supervisor.plugins.reports import SourceReport
from supervisor.workers.interface import ExitReport, Reply, WorkerOptions
from supervisor.workers.parent.backend import ForkserverBackend
from supervisor.workers.parent.worker_process import ForkedWorker
from supervisor.workers.system import process_tree as proctree

TIMEOUT = 30.0
POLICY = Policy()
OPTIONS = WorkerOptions((), 10.0, "fork", 0.05, {}, 2_000_000, "owner")

HANDLERS = r'''
import ctypes, os, re, signal, subprocess, sys, time
from supervisor import handler, Reject, Retry

def mark(job):
    """Say in a file that the job has begun, and as which process."""
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
    """Everything heard so far, by what the port calls it."""

    backend: ForkserverBackend
    folder: Path
    reports: Sequence[SourceReport] = ()
    readied: list[Any] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    deaths: dict[Any, ExitReport] = field(default_factory=dict)
    beats: int = 0
    lines: list[tuple[str, int | None, str]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    forkserver_exits: list[tuple[int, str]] = field(default_factory=list)
    nurseries: list[int] = field(default_factory=list)
    _change: asyncio.Event = field(default_factory=asyncio.Event)
    _frame: int = 0

    # what happens

    def ready(self, process: Any) -> None:
        self.readied.append(process)
        self._change.set()

    def replied(self, process: Any, replies: Sequence[Reply]) -> None:
        self.replies += replies
        self._change.set()

    def heartbeat(self, process: Any) -> None:
        self.beats += 1
        self._change.set()

    def output(self, process: Any, stream: str, job_id: int | None, lines: Sequence[str]) -> None:
        self.lines += [(stream, job_id, line) for line in lines]
        self._change.set()

    def channel_broken(self, process: Any, why: str) -> None:
        self.broken.append(why)
        self._change.set()

    def exited(self, process: Any) -> None:
        assert process not in self.deaths

    def ended(self, process: Any, death: ExitReport) -> None:
        assert process not in self.deaths
        self.deaths[process] = death
        self._change.set()

    def forkserver_exited(self, pid: int, how: str) -> None:
        self.forkserver_exits.append((pid, how))
        self._change.set()

    def forkserver_started(self, backend: Any, pid: int, reports: Sequence[SourceReport]) -> None:
        self.nurseries.append(pid)
        self.reports = reports
        self._change.set()

    # what the test does

    async def until(self, fact: Callable[[], Any]) -> Any:
        """Wait for a fact; it is looked at after every callback, and now and then for facts outside."""
        deadline = time.monotonic() + TIMEOUT
        while not (value := fact()):
            assert time.monotonic() < deadline, f"never came true; heard {self}"
            self._change.clear()
            try:
                await asyncio.wait_for(self._change.wait(), 0.02)
            except TimeoutError:
                pass
        return value

    async def worker(self, number: int = 1) -> ForkedWorker:
        process = self.backend.fork(number)
        await self.until(lambda: process in self.readied or process in self.deaths)
        return process

    def send(self, process: ForkedWorker, *leases: Lease) -> int:
        self._frame = (self._frame + 1) & 255
        process.send(self._frame, leases)
        return self._frame

    async def run(self, process: ForkedWorker, *leases: Lease) -> list[Reply]:
        """Send one frame and wait until every job of it was replied to."""
        before = len(self.replies)
        self.send(process, *leases)
        await self.until(lambda: len(self.replies) >= before + len(leases))
        return self.replies[before:]

    async def begin(self, process: ForkedWorker, name: str, job_id: int = 1, **payload: Any) -> int:
        """Send one job and wait until it says that it runs."""
        begun = self.folder / f"begun-{job_id}"
        self.send(process, lease(job_id, name, {"begun": str(begun), **payload}))
        await self.until(lambda: begun.exists() and begun.read_text())
        return int(begun.read_text())

    async def death(self, process: ForkedWorker) -> ExitReport:
        death: ExitReport = await self.until(lambda: self.deaths.get(process))
        return death

    def said_by(self, job_id: int | None, stream: str) -> list[str]:
        return [line for where, job, line in self.lines if job == job_id and where == stream]


def lease(job_id: int, handler: str, payload: Any = None, **fields: Any) -> Lease:
    """`payload` may be JSON text, right or wrong."""
    text = payload if isinstance(payload, str) else orjson.dumps(payload).decode()
    return Lease(job_id, 1, handler, "default", text, None, 0, 0, 0, 0, 0, POLICY)._replace(**fields)


@asynccontextmanager
async def world(
    folder: Path, handlers: str = "", *, other: Mapping[str, str] = {}, **options: Any
) -> AsyncIterator[World]:
    """A nursery with the handlers above and these; afterwards no process is left, and no descriptor."""
    plugins = folder / "plugins"
    plugins.mkdir()
    (plugins / "jobs.py").write_text(HANDLERS + handlers)
    for name, text in other.items():
        (plugins / name).write_text(text)
    fds, before = open_fds(), set(proctree.children(os.getpid()))
    loop = asyncio.get_running_loop()
    owner = f"test-{os.getpid()}-{time.monotonic_ns()}"
    settings = replace(OPTIONS, plugins=(str(plugins),), owner=owner, **options)
    backend = ForkserverBackend(settings, (here := World(None, folder)), loop)  # type: ignore[arg-type]
    here.backend = backend
    try:
        here.reports = await backend.start()
        yield here
    finally:
        await backend.stop()
    left = [(pid, proctree.stat(pid)) for pid in proctree.children(os.getpid()) if pid not in before]
    assert left == [], f"left behind: {left}"
    assert list(proctree.marked(owner)) == []
    assert open_fds() == fds


def open_fds() -> int:
    return fds_of(os.getpid())


def fds_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def gone(pid: int) -> bool:
    return not proctree.is_living(pid)
