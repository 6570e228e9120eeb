"""The chaos test of the Kafka store: supervisors of one group, a load, faults and a watcher, from the start to the evidence.

The kinds of faults and their times are a function of the seed alone; which process a fault hits depends on which run then.
"""

from __future__ import annotations

import json
import math
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from tests.kafka.broker import QUIET, Broker
from tests.kafka.chaos_load import PARTITIONS, PLUGIN, RETRIES, Journal, Load
from tests.kafka.supervised import QUICK
from tests.system.command import Command, Running, wait_for

PER_SECOND = 40.0
MEAN_INTERVAL = 2.0  # seconds from one fault to the next
COMMIT_INTERVAL = 0.2
MAX_SUPERVISORS = 3

Span = tuple[float, float]
FAULTS: Mapping[str, tuple[int, Span]] = {  # how often, and for how many seconds
    "kill worker": (10, (0.0, 0.0)),
    "stop worker": (4, (0.1, 3.0)),
    "kill supervisor": (3, (0.0, 0.0)),
    "term supervisor": (4, (0.0, 0.0)),
    "stop supervisor": (3, (0.3, 9.0)),
    "remove supervisor": (3, (3.0, 12.0)),
}
"""A supervisor that was killed or terminated is started again; one that is removed is terminated, and started again later."""


class PlannedFault(NamedTuple):
    at: float
    kind: str
    choice: float
    seconds: float


class InjectedFault(NamedTuple):
    """Times are monotonic seconds."""

    kind: str
    at: float
    until: float


Brokers = Mapping[str, tuple[int, Span, Callable[[], Callable[[], None]]]]
"""Further kinds of faults: each is injected by a call that returns how it is undone."""


def plan(seed: str, seconds: float, faults: Mapping[str, tuple[int, Span]]) -> list[PlannedFault]:
    chance, at, planned = Random(seed), 1.0, []
    kinds, frequencies = list(faults), [frequency for frequency, _ in faults.values()]
    while (at := at + chance.expovariate(1 / MEAN_INTERVAL)) < seconds:
        kind = chance.choices(kinds, frequencies)[0]
        planned.append(PlannedFault(at, kind, chance.random(), chance.uniform(*faults[kind][1])))
    return planned


class Watcher:
    """Looks again and again whether a committed offset has passed a record that is not done."""

    def __init__(self, bootstrap: str, topic: str, group: str, journal: Journal, load: Load) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.auto.commit": False, **QUIET}
        self._group = Consumer({**settings, "group.id": group})
        self._reader = Consumer({**settings, "group.id": "a reader", "fetch.wait.max.ms": 20})
        self._reader.assign([TopicPartition(f"{topic}.dlq", 0, OFFSET_BEGINNING)])
        self._partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self._journal, self._load = journal, load
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._passed: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
        self.passed_at: dict[tuple[int, int], float] = {}
        self.committed: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
        self.dead_letters: dict[tuple[int, int], list[Any]] = {}
        self.problems: list[str] = []
        self.looks = 0

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(60)
        self._group.close()
        self._reader.close()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            with suppress(KafkaException):
                self.look()

    def look(self) -> None:
        committed = {it.partition: it.offset for it in self._group.committed(self._partitions, 2.0) if it.offset >= 0}
        self._read_dead_letters()
        self._journal.read()
        for partition, offset in committed.items():
            if offset < self.committed[partition]:
                self.problems.append(
                    f"the offset of {partition} went from {self.committed[partition]} back to {offset}"
                )
            self.committed[partition] = offset
            self._check(partition, offset)
        self.looks += 1

    def _check(self, partition: int, committed: int) -> None:
        for offset in range(self._passed[partition], committed):
            place = partition, offset
            if place in self._load.sent and place not in self._journal.ended and place not in self.dead_letters:
                self.passed_at[place] = time.time()  # its dead letter may not have been read yet
        self._passed[partition] = max(self._passed[partition], committed)

    def _read_dead_letters(self) -> None:
        for message in self._reader.consume(500, 0.01):
            if message.error() is not None:
                continue
            headers: dict[str, Any] = dict(message.headers() or ())
            place = int(headers["partition"]), int(headers["offset"])
            self.dead_letters.setdefault(place, []).append((message.key(), message.value(), headers))
            if message.timestamp()[1] / 1000 > self.passed_at.get(place, math.inf):
                self.problems.append(f"the offset of {place} was committed before its dead letter was published")


class Chaos:
    """Runs in the folder of `command`. `faults` are those of the brokers. No supervisor leaves the group by itself within `settling`
    seconds after another change of the group: the test broker keeps a leader that leaves during a rebalance, for ever."""

    def __init__(
        self, command: Command, broker: Broker, topic: str, group: str, seed: str, faults: Brokers, settling: float
    ) -> None:  # fmt: skip
        self._settling, self._changed_at = settling, 0.0
        self._command, self._seed, self._brokers = command, seed, faults
        config = {
            "store": {
                "type": "kafka", "bootstrap": broker.bootstrap, "group": group, "topics": {topic: "work"},
                "commit_interval": f"{COMMIT_INTERVAL}s", "revoke_timeout": "2s", "kafka": QUICK,
            },
            "workers": {"count": 4, "heartbeat": "100ms", "heartbeat_timeout": "2s"},
            "retry": {"max_retries": RETRIES, "backoff": {"base": "50ms", "max": "200ms", "jitter": "none"}},
            "shutdown": {"grace": "2s"},
            "log": {"level": "debug"},
        }  # fmt: skip
        command.write(config=json.dumps(config), plugins={"load.py": PLUGIN})
        self.load = Load(broker.bootstrap, topic, seed, PER_SECOND)
        self.journal = Journal(command.folder)
        self.watcher = Watcher(broker.bootstrap, topic, group, self.journal, self.load)
        self._runs: list[Running | None] = [None] * MAX_SUPERVISORS
        self._removed_until = [0.0] * MAX_SUPERVISORS
        self._undo: list[tuple[float, Callable[[], object]]] = []
        self.injected: list[InjectedFault] = []
        self.started: list[float] = []
        self._ending: list[Running] = []
        self.codes: Counter[int] = Counter()

    def inject_faults(self, seconds: float) -> None:
        self._keep_running()
        self.load.start()
        self.watcher.start()
        wait_for(lambda: len(self.journal.ended) > 0, 60.0)
        kinds = {**FAULTS, **{kind: (frequency, span) for kind, (frequency, span, _) in self._brokers.items()}}
        begun = time.monotonic()
        for fault in plan(self._seed, seconds, kinds):
            while time.monotonic() < begun + fault.at:
                self._undo_due()
                self._keep_running()
                time.sleep(0.02)
            self._inject(fault)

    def finish(self, timeout: float) -> None:
        """Undo all faults; fail unless all records are committed within `timeout` seconds, and every supervisor exits with 0."""
        self._undo_due(float("inf"))
        self._removed_until = [0.0] * MAX_SUPERVISORS
        self.load.end(timeout)
        wait_for(self._all_is_committed, timeout, every=0.2)
        self.watcher.end()
        for run in filter(None, self._runs):
            if run not in self._ending:
                run.signal(signal.SIGTERM)
        codes = [run.wait(30.0) for run in filter(None, self._runs)]
        assert set(codes) == {0}, f"supervisors ended with {codes}"

    def stop(self) -> None:
        """Kill whatever still runs."""
        self._undo_due(float("inf"))
        for run in filter(None, self._runs):
            run.process.kill()
            run.process.wait()

    @property
    def logs(self) -> str:
        return "".join(run.log for run in self._command.runs)

    @property
    def supervisors(self) -> dict[int, int]:
        """The supervisor of each forkserver, by their pids."""
        started = re.compile(r"forkserver started \(pid (\d+)\)")
        return {int(pid): run.pid for run in self._command.runs for pid in started.findall(run.log)}

    def _all_is_committed(self) -> None:
        self._keep_running()
        ends: dict[int, int] = {}
        for partition, offset in self.load.sent:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        left = {
            number: (self.watcher.committed[number], end)
            for number, end in ends.items()
            if self.watcher.committed[number] < end
        }
        assert not left, f"partitions that are not committed to their ends: {left}"

    def _keep_running(self) -> None:
        for index, run in enumerate(self._runs):
            if run is not None and run.code is not None:
                self.codes[run.code] += 1
                self._runs[index] = run = None
            if run is None and time.monotonic() >= self._removed_until[index]:
                self._runs[index] = self._command.run()
                self.started.append(time.monotonic())
                self._changed_at = time.monotonic()

    def _undo_due(self, now: float | None = None) -> None:
        now = time.monotonic() if now is None else now
        due = [undo for until, undo in self._undo if until <= now]
        self._undo = [(until, undo) for until, undo in self._undo if until > now]
        for undo in due:
            undo()
            self._changed_at = time.monotonic()

    def _inject(self, fault: PlannedFault) -> None:
        now = time.monotonic()
        until = now + fault.seconds
        action, _, target = fault.kind.partition(" ")
        if fault.kind in self._brokers:
            self._undo.append((until, self._brokers[fault.kind][2]()))
        else:
            index = int(fault.choice * MAX_SUPERVISORS)
            run = self._runs[index]
            if run is None or "supervisor started" not in run.log or run in self._ending:
                return
            leaves = target == "supervisor" and action in ("remove", "term")
            if leaves and now - self._changed_at < self._settling:
                return
            if action == "remove":
                self._removed_until[index] = until
            if leaves:
                self._ending.append(run)  # a second signal would force its end
            process = self._process(run, target, fault.choice)
            if process is None:
                return
            number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(action, signal.SIGTERM)
            with suppress(psutil.Error):
                process.send_signal(number)
                if number is signal.SIGSTOP:
                    self._undo.append((until, lambda: _resume(process)))
        self._changed_at = now if target != "worker" else self._changed_at
        self.injected.append(InjectedFault(fault.kind, now, until))

    def _process(self, run: Running, target: str, choice: float) -> psutil.Process | None:
        with suppress(psutil.Error):
            supervisor = psutil.Process(run.pid)
            if target == "supervisor":
                return supervisor
            workers = [it for child in supervisor.children() for it in child.children()]
            return Random(choice).choice(workers) if workers else None
        return None


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.resume()
