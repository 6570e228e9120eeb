"""A steady stream of jobs through one supervisor, and its costs, measured from outside."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from tests.system.command import Command, Running

CONFIG = """
workers: {count: 2, heartbeat: 200ms}
retry: {max_retries: 3, backoff: {base: 100ms}}
retention: {succeeded: 3s, failed: none}
log: {level: warning}
"""

BYTES_PER_JOB = 4

PLUGIN = """
import time
from supervisor import handler

LATENCIES = open("latencies", "a", buffering=1)

@handler
def work(job):
    "Fail once, in one of a hundred jobs."
    if job.attempt == 1 and job.payload["n"] % 100 == 0:
        raise OSError("down")
    return job.payload

@handler
def probe(job):
    LATENCIES.write(f"{time.monotonic()} {time.monotonic() - job.payload}\\n")
"""

CLIENT = """
import signal, sqlite3, sys, time
from supervisor import Client

rate, stop_requested, n = int(sys.argv[1]), [], 0
BATCHES, PROBES = 20, 5  # per second
signal.signal(signal.SIGTERM, lambda *_: stop_requested.append(1))
counts = sqlite3.connect("file:jobs.db?mode=ro", uri=True, timeout=30)
with Client("sqlite:///jobs.db") as jobs:
    due = time.monotonic()
    while not stop_requested:
        waiting, = counts.execute("select coalesce(sum(n), 0) from counts where state < 3").fetchone()
        if waiting < rate:  # a machine that is slower than the stream is given time, not a backlog
            jobs.enqueue_many([("work", {"n": n + index}) for index in range(rate // BATCHES)])
            n += rate // BATCHES
        if n % (BATCHES // PROBES * (rate // BATCHES)) == 0:
            jobs.enqueue("probe", time.monotonic(), priority=100)
        due += 1 / BATCHES
        time.sleep(max(0.0, due - time.monotonic()))
print(n)
"""


@dataclass(frozen=True)
class Sample:
    """One measurement, at monotonic seconds. Memory is in bytes, without pages of files, and a shared page counts by its share,
    so other programs that come and go don't change it. `children` are the forkserver and its workers."""

    at: float
    supervisor: int
    children: int
    files: int
    threads: int
    wal: int
    database: int


class Meter:
    """Measures a run."""

    def __init__(self, command: Command, run: Running) -> None:
        self._database = command.folder / "jobs.db"
        self._supervisor = psutil.Process(run.pid)

    def read(self) -> Sample:
        children = self._supervisor.children(recursive=True)
        return Sample(
            time.monotonic(),
            _memory([self._supervisor]),
            _memory(children),
            sum(process.num_fds() for process in [self._supervisor, *children]),
            sum(process.num_threads() for process in [self._supervisor, *children]),
            _size(self._database.with_name("jobs.db-wal")),
            _size(self._database),
        )


def _memory(processes: Iterable[psutil.Process]) -> int:
    rollups = [Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in processes]
    return sum(1024 * int(re.findall(r"^Pss_Anon: +(\d+) kB", rollup, re.MULTILINE)[0]) for rollup in rollups)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


class Stream:
    """A client that enqueues `rate` jobs per second, and now and then a probe that records its latency."""

    def __init__(self, command: Command, rate: int) -> None:
        self.rate = rate
        self._latencies = command.folder / "latencies"
        self._client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(rate)], cwd=command.folder, env=command.env, stdout=subprocess.PIPE, text=True
        )  # fmt: skip

    def latencies(self, since: float, until: float) -> list[float]:
        """Return the seconds from enqueue to start of the probes that started in this time."""
        probes = [line.split() for line in self._latencies.read_text().splitlines()]
        return [float(latency) for at, latency in probes if since <= float(at) < until]

    def end(self) -> int:
        """End the client, and return how many jobs it has enqueued."""
        self._client.terminate()
        out, _ = self._client.communicate(timeout=60)
        assert self._client.returncode == 0
        return int(out)

    def kill(self) -> None:
        self._client.kill()
        self._client.communicate()


@dataclass(frozen=True)
class Figure:
    """One cost in the first and in the second half of the time; it may grow by `room`."""

    name: str
    unit: str
    first: float
    second: float
    room: float

    @property
    def is_flat(self) -> bool:
        return self.second - self.first <= self.room

    def __str__(self) -> str:
        return f"{self.name} {self.first:.1f} -> {self.second:.1f} {self.unit}"


def figures(samples: Sequence[Sample], stream: Stream, since: float) -> list[Figure]:
    """Compare the two halves of the time after `since`. A heap goes on to grow for long, by less than a few bytes per job; any
    object kept for each job is more."""
    until = samples[-1].at
    middle = (since + until) / 2
    first = [sample for sample in samples if since <= sample.at < middle]
    second = [sample for sample in samples if sample.at >= middle]

    def figure(name: str, how: Callable[[list[int]], float], of: str, unit: str, scale: float, room: float) -> Figure:
        before, after = (how([getattr(sample, of) for sample in half]) / scale for half in (first, second))
        return Figure(name, unit, before, after, room)

    latencies = [1000 * median(stream.latencies(*half)) for half in ((since, middle), (middle, until))]
    mb = 1e6
    settling = BYTES_PER_JOB * stream.rate * (until - middle) / mb
    return [
        figure("memory of the supervisor", median, "supervisor", "MB", mb, 0.8 + settling),
        figure("of its children", median, "children", "MB", mb, 2.0 + settling),
        figure("open files", median, "files", "", 1, 0),
        figure("threads", median, "threads", "", 1, 0),
        figure("write-ahead log", max, "wal", "MB", mb, 8.0),
        figure("database", max, "database", "MB", mb, 0.25 * max(sample.database for sample in first) / mb + 2.0),
        Figure("latency", "ms", *latencies, room=latencies[0] + 100.0),
    ]
