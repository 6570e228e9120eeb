"""The faults of the chaos test. Their kinds and times are a function of the seed alone; which process a fault hits depends on
which processes run then."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import psutil

from tests.system.chaos_environments import Environment, EnvironmentFault, Span
from tests.system.chaos_hosts import Host
from tests.system.chaos_load import Load

MEAN_INTERVAL = 0.3  # seconds from one fault to the next
POLL_INTERVAL = 0.03  # seconds
MAX_WORKERS = 4

FAULTS: dict[str, tuple[int, Span]] = {  # how often, and for how many seconds
    "kill worker": (14, (0.0, 0.0)),
    "stop worker": (8, (0.05, 3.5)),
    "term worker": (3, (0.0, 0.0)),
    "kill forkserver": (5, (0.0, 0.0)),
    "stop forkserver": (4, (0.1, 3.0)),
    "term forkserver": (2, (0.0, 0.0)),
    "kill supervisor": (5, (0.0, 0.0)),
    "term supervisor": (4, (0.0, 0.0)),
    "stop supervisor": (7, (0.3, 9.0)),
    "delay supervisor": (8, (0.01, 0.08)),
    "hup supervisor": (3, (0.0, 0.0)),
    "ttin supervisor": (2, (0.0, 0.0)),
    "ttou supervisor": (2, (0.0, 0.0)),
    "kill client": (2, (0.0, 0.0)),
}
"""In every environment; each has faults of its own."""


@dataclass(frozen=True)
class PlannedFault:
    """A fault `at` seconds from the beginning; `host_choice` and `process_choice` in [0, 1) choose among those that run then."""

    at: float
    kind: str
    host_choice: float
    process_choice: float
    seconds: float


@dataclass
class InjectedFault:
    """A fault that has hit run number `run`, the supervisors on `host`, or neither in particular (0, None); times are monotonic
    seconds."""

    kind: str
    run: int
    pid: int
    at: float
    until: float
    host: int | None = None


def plan(
    seed: str, seconds: float, of_environment: Mapping[str, tuple[int, Span]], without: frozenset[str] = frozenset()
) -> list[PlannedFault]:
    """Return the faults of so many seconds. To leave out some kinds changes none of the others."""
    chance, at, planned = Random(seed), 1.0, []
    known = {**FAULTS, **of_environment}
    kinds, frequencies = list(known), [frequency for frequency, _ in known.values()]
    while (at := at + chance.expovariate(1 / MEAN_INTERVAL)) < seconds:
        kind = chance.choices(kinds, frequencies)[0]
        fault = PlannedFault(at, kind, chance.random(), chance.random(), chance.uniform(*known[kind][1]))
        if kind not in without:
            planned.append(fault)
    return planned


class FaultInjector:
    """Every fault is undone in time, and by `undo_all` at the latest."""

    def __init__(self, hosts: list[Host], load: Load, environment: Environment) -> None:
        self._hosts, self._load, self._environment = hosts, load, environment
        self._undo: list[tuple[InjectedFault, Callable[[], object]]] = []
        self.injected: list[InjectedFault] = []

    def follow(self, planned: list[PlannedFault]) -> None:
        begun = time.monotonic()
        for fault in planned:
            self._wait_until(begun + fault.at)
            self._inject(fault)

    def undo_all(self) -> None:
        """Undo every fault, and wait until a supervisor runs on every host."""
        self.undo_due()
        while not self._all_run():
            time.sleep(POLL_INTERVAL)

    def undo_due(self, now: float = float("inf")) -> None:
        """Undo the faults that were to last until now."""
        due = [(fault, undo) for fault, undo in self._undo if fault.until <= now]
        self._undo = [(fault, undo) for fault, undo in self._undo if fault.until > now]
        for fault, undo in due:
            undo()
            fault.until = time.monotonic()

    def ending(self) -> list[int]:
        """Return the runs that were terminated and have not exited: a second TERM would force them."""
        terminated = {fault.run for fault in self.injected if fault.kind == "term supervisor"}
        return [host.run.number for host in self._hosts if host.run.number in terminated]

    def terminate_all(self) -> None:
        for host in self._hosts:
            if (process := host.supervisor()) is not None:
                self._send(PlannedFault(0.0, "term supervisor", 0.0, 0.0, 0.0), signal.SIGTERM, host, process)

    def _wait_until(self, when: float) -> None:
        while (now := time.monotonic()) < when:
            self.undo_due(now)
            self._all_run()
            time.sleep(min(POLL_INTERVAL, when - now))

    def _all_run(self) -> bool:
        return sum(host.is_running() for host in self._hosts) == len(self._hosts)

    def _inject(self, fault: PlannedFault) -> None:
        action, _, target = fault.kind.partition(" ")
        if fault.kind == "kill client":
            self._load.kill()
            self._note(fault, 0, 0)
        elif (of_environment := self._environment.faults.get(fault.kind)) is not None:
            self._inject_into_environment(fault, of_environment)
        else:
            self._signal(fault, action, target)

    def _note(self, fault: PlannedFault, run: int, pid: int) -> InjectedFault:
        now = time.monotonic()
        injected = InjectedFault(fault.kind, run, pid, now, now + fault.seconds)
        self.injected.append(injected)
        return injected

    def _signal(self, fault: PlannedFault, action: str, target: str) -> None:
        host = self._hosts[int(fault.host_choice * len(self._hosts))]
        process = self._find(host, target, fault.process_choice)
        if process is None or (action in ("hup", "ttin", "ttou") and not host.serves):
            return
        if action == "ttin" and len(host.workers()) >= MAX_WORKERS:
            return
        number = signal.SIGSTOP if action in ("stop", "delay") else signal.Signals[f"SIG{action.upper()}"]
        self._send(fault, number, host, process)

    def _send(self, fault: PlannedFault, number: signal.Signals, host: Host, process: psutil.Process) -> None:
        injected = self._note(fault, host.run.number, process.pid)
        with suppress(psutil.Error):
            process.send_signal(number)
            if number is signal.SIGSTOP:
                self._undo.append((injected, lambda: self._resume(process)))

    def _resume(self, process: psutil.Process) -> None:
        """Resume it, unless another fault still stops it."""
        if not any(fault.pid == process.pid for fault, _ in self._undo):
            with suppress(psutil.Error):
                process.resume()

    def _find(self, host: Host, target: str, choice: float) -> psutil.Process | None:
        if target == "supervisor":
            return host.supervisor()
        if target == "forkserver":
            return host.forkserver()
        workers = host.workers()
        return workers[int(choice * len(workers))] if workers else None

    def _inject_into_environment(self, fault: PlannedFault, of_environment: EnvironmentFault) -> None:
        injected = self._note(fault, 0, 0)
        result = of_environment.inject(fault.host_choice)
        if result is None:
            self.injected.remove(injected)
            return
        injected.host, undo = result
        injected.until = time.monotonic() + fault.seconds
        self._undo.append((injected, undo))
