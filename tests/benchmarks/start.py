"""The time that a short command takes, beside `python -c pass` in the same run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks.contender import deployed
from tests.benchmarks.peers import ours
from tests.benchmarks.peers.catalogue import SUPERVISOR
from tests.benchmarks.run import NotMeasured, Run
from tests.benchmarks.table import Measure

NAME = "start"
TITLE = "short commands beside `python -c pass`; wanted: --version takes at most 60 ms more than that, enqueue 150 ms"
SAMPLES = 15
PYTHON_COMMAND = (sys.executable, "-c", "pass")
PYTHON = Measure("python -c pass", "ms", "less")
VERSION = Measure("--version, beyond that", "ms", "less")
ENQUEUE = Measure("enqueue, beyond that", "ms", "less")


def run(run: Run) -> None:
    samples = 1 if run.quick else SAMPLES
    table = run.table(NAME, TITLE, [PYTHON, VERSION, ENQUEUE])
    table.note(f"median of {samples} in each round; enqueue: with a config file, one job into a SQLite store")
    run.compare(table, {SUPERVISOR.title: partial(started, samples)})


def started(samples: int) -> Mapping[str, float]:
    with deployed(SUPERVISOR) as contender:
        ours.write(contender.deployment)
        enqueue = [command(), "enqueue", "noop", "-c", str(ours.config(contender.deployment))]
        command_seconds(enqueue)  # creates the store
        commands = {PYTHON.name: PYTHON_COMMAND, VERSION.name: (command(), "--version"), ENQUEUE.name: enqueue}
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(samples):
            for name, arguments in commands.items():
                seconds[name].append(command_seconds(arguments))
        medians = {name: statistics.median(values) * 1e3 for name, values in seconds.items()}
        python = medians[PYTHON.name]
        return {name: median - (0.0 if name == PYTHON.name else python) for name, median in medians.items()}


def command() -> str:
    """Return the path of the `supervisor` command of this environment. Raises NotMeasured if there is none."""
    path = Path(sys.executable).with_name("supervisor")
    if not path.exists():
        raise NotMeasured(f"not installed: {path}")
    return str(path)


def command_seconds(arguments: Sequence[str]) -> float:
    start = time.monotonic()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start
