"""`jobs list` and `status` as commands: their time and their memory, as jobs and queues become more and payloads larger."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from supervisor.stores.records import EnqueueRow
from tests.benchmarks.contender import ROOT, deployed
from tests.benchmarks.peers import ours
from tests.benchmarks.peers.base import Peer
from tests.benchmarks.peers.catalogue import SUPERVISOR, SUPERVISOR_POSTGRES
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure

NAME = "lists"
TITLE = "commands that list jobs and queues; wanted: memory that does not grow with payloads, time that grows linearly"
TIME = Measure("user and system time", "s", "less")
PEAK = Measure("peak memory", "MB", "less")
QUICK_DIVISOR = 50
BATCH = 2_000_000  # bytes of payloads


class Case(NamedTuple):
    command: str
    jobs: int
    size: int = 10
    queues: int = 1

    @property
    def title(self) -> str:
        return f"{self.command}: {self.jobs:,} jobs of {self.size:,} bytes in {self.queues:,} queue{'s' * (self.queues > 1)}"


CASES = (
    *[Case("jobs list", 300, size) for size in (1_000, 100_000, 1_000_000)],
    *[Case("jobs list --json", 300, size) for size in (1_000, 100_000, 1_000_000)],
    *[Case("jobs list", jobs) for jobs in (1_000, 10_000, 100_000)],
    *[Case("status", queues, queues=queues) for queues in (100, 1_000, 10_000)],
)


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [TIME, PEAK])
    contenders = {
        f"{case.title}{'' if peer is SUPERVISOR else ', PostgreSQL'}": partial(measured, peer, case, run.quick)
        for peer in (SUPERVISOR, SUPERVISOR_POSTGRES)
        for case in CASES
    }
    table.ours = next(iter(contenders))
    run.compare(table, contenders, 1 if run.quick else None)


def measured(peer: Peer, case: Case, quick: bool) -> Mapping[str, float]:
    jobs = case.jobs // QUICK_DIVISOR if quick else case.jobs
    with deployed(peer) as contender:
        with ours.opened_store(contender.deployment) as store:
            rows = [
                EnqueueRow("noop", f'"{"x" * (case.size - 2)}"', f"queue-{number}")
                for number in range(max(1, case.queues * jobs // case.jobs))
            ]
            batch = max(1, BATCH // case.size)
            for done in range(0, jobs, batch):
                store.enqueue([rows[number % len(rows)] for number in range(done, min(jobs, done + batch))])
        arguments = [*case.command.split(), *(["--limit", str(jobs)] if "list" in case.command else [])]
        command = [sys.executable, "-m", "supervisor", *arguments, "-c", str(ours.config(contender.deployment))]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: exit code {process.returncode}")
    return {TIME.name: used.ru_utime + used.ru_stime, PEAK.name: used.ru_maxrss / 1000}
