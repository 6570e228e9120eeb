"""A contender at work: its folder, its server, its workers, and a client in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks import servers
from tests.benchmarks.peers.base import Payload, Peer, Place, Settings, Task
from tests.benchmarks.run import Absent
from tests.benchmarks.wait import TIMEOUT, until

ROOT = Path(__file__).parents[2]


class Stamps:
    """The file that `stamp` and its like write to."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def payload(self, id: object, **more: Any) -> Payload:
        return {"to": str(self.file), "id": str(id), **more}

    def lines(self) -> list[tuple[str, int, int]]:
        """(id, time in ns, pid) of each start, in the order of writing."""
        lines = (line.split() for line in self.file.read_text().splitlines())
        return [(id, int(at), int(pid)) for id, at, pid in lines]

    def times(self) -> dict[str, list[int]]:
        """The starts of each id, in ns."""
        times: dict[str, list[int]] = {}
        for id, at, _pid in self.lines():
            times.setdefault(id, []).append(at)
        return times

    def wait(self, count: int, timeout: float = TIMEOUT, every: float = 0.001) -> None:
        """Until so many lines are there; looks `every` so many seconds."""
        until(lambda: self.file.read_bytes().count(b"\n") >= count, f"{count} jobs in {self.file.name}", timeout, every)

    def wait_for(self, id: object, timeout: float = TIMEOUT) -> int:
        """Until a job has started; when that was, in ns."""
        wanted = str(id)
        until(lambda: wanted in self.times(), f"the start of job {wanted}", timeout)
        return self.times()[wanted][0]


class Client:
    """The program that enqueues: a process of its own, since peers' libraries must not meet each other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def enqueue(self, task: Task, payload: Payload) -> int:
        """Gives the time in ns just before the client began to enqueue it."""
        return int(self._ask("enqueue", task=task, payload=dict(payload)))

    def enqueue_each(self, task: Task, payloads: Sequence[Payload]) -> float:
        """One by one; the seconds it took."""
        return float(self._ask("enqueue_each", task=task, payloads=list(payloads)))

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> float:
        """In bulk, if the peer can; the seconds it took."""
        return float(self._ask("enqueue_many", task=task, payloads=list(payloads)))

    def steadily(self, task: Task, payloads: Sequence[Payload], rate: float) -> list[int]:
        """One by one at so many a second; the times in ns just before each was enqueued."""
        return [int(at) for at in self._ask("steadily", task=task, payloads=list(payloads), rate=rate)]

    def steadily_begin(self, task: Task, payloads: Sequence[Payload], rate: float) -> None:
        """The same without waiting for its end; `steadily_end` gives the times."""
        self._tell("steadily", task=task, payloads=list(payloads), rate=rate)

    def steadily_end(self) -> list[int]:
        return [int(at) for at in self._answer()]

    def load_begin(self, rate: float, batches: float, seconds: float) -> None:
        """No-op jobs at so many a second, in so many batches a second, without waiting for the end."""
        self._tell("load", rate=rate, batches=batches, seconds=seconds)

    def load_end(self) -> float:
        """Waits for it, and gives the rate that was reached."""
        return float(self._answer())

    def _ask(self, verb: str, **arguments: Any) -> Any:
        self._tell(verb, **arguments)
        return self._answer()

    def _tell(self, verb: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self.process.stdin.flush()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the client ended; see its messages above")
        answer = json.loads(line)
        if "problem" in answer:
            raise RuntimeError(answer["problem"])
        return answer["value"]


class Site:
    """Where one contender lives for the time of a measurement."""

    def __init__(self, peer: Peer, place: Place) -> None:
        self.peer, self.place = peer, place
        self.folder = Path(place.folder)
        self.log = self.folder / "workers.log"

    def stamps(self, name: str = "stamps") -> Stamps:
        return Stamps(self.folder / name)

    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(ROOT)} | self.place.environment()

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        command = [sys.executable, "-m", "tests.benchmarks.client_program", self.peer.module]
        with (self.folder / "client.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        client = Client(process)
        try:
            try:
                client._answer()  # it is connected
            except RuntimeError as problem:
                raise Absent(f"its client does not start: {problem}; {_tail(self.folder / 'client.log')}") from None
            yield client
        finally:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()

    @contextlib.contextmanager
    def workers(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Starts them, and doesn't wait for anything. At the end they are asked to stop, and then killed with all below them."""
        processes = self.start_workers()
        try:
            yield processes
        finally:
            below = [one for process in processes for one in tree(process.pid)]
            for process in processes:
                process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 5.0
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
            kill(below)
            for process in processes:
                process.wait()

    def start_workers(self) -> list[subprocess.Popen[bytes]]:
        """For rows that kill them themselves."""
        with self.log.open("ab") as log:
            return [
                subprocess.Popen(
                    command,
                    env=self.environment(),
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                for command in self.peer.commands(self.place)
            ]

    def said(self) -> str:
        """The end of what the workers wrote, for the reason of a failure."""
        return _tail(self.log)


@contextlib.contextmanager
def site(peer: Peer, settings: Settings | None = None) -> Iterator[Site]:
    """A place for this peer, with its server running; gone afterwards. Raises Absent if it can't be had."""
    missing = [name for name in peer.distributions if not installed(name)]
    if missing:
        raise Absent(f"not installed: {', '.join(missing)}")
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as stack,
    ):
        url = stack.enter_context(servers.RUNNING[peer.server]()) if peer.server else ""
        yield Site(peer, Place(folder, url, settings or Settings()))


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def installed(distribution: str) -> str | None:
    """Its version."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def tree(pid: int) -> list[psutil.Process]:
    """The process and all below it."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _tail(file: Path, lines: int = 3) -> str:
    return " / ".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else ""
