"""The time of a claim, and the memory of the supervisor process, with backlogs of several sizes."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from supervisor.stores.sqlite.store import SqliteStore
from tests.benchmarks import prepared_store
from tests.benchmarks.contender import deployed
from tests.benchmarks.peers import ours
from tests.benchmarks.peers.catalogue import SUPERVISOR
from tests.benchmarks.processes import peak_rss, pss
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure
from tests.benchmarks.wait import wait_until

NAME = "claims"
TITLE = "a claim, durable, beside jobs that wait; wanted: flat within 1.5 x"
LEVELS = (10, 10_000, 1_000_000, 5_000_000)
QUICK = LEVELS[:2]
ONE, MANY = 1, 500
CLAIMS = {ONE: 50, MANY: 20}
ROUNDS = 5  # for each round of the run, since a claim takes less than a millisecond
MEASURES = {ONE: Measure("claim of 1", "ms", "less"), MANY: Measure("claim of 500", "ms", "less")}
DRAINED = 50_000
PEAK = Measure("peak, parent", "MB of RSS", "less")
MEMORY = Measure("memory, parent", "MB of PSS", "less")


def run(run: Run) -> None:
    levels = QUICK if run.quick else LEVELS
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run.show_progress(f"{NAME}: enqueueing {levels[-1]:,} jobs")
        files = files_of(Path(folder), levels, prepared_store.fill)
        compare_claims(run, files)
        compare_memory(run, files[levels[-1]], levels[-1])


def files_of(folder: Path, levels: Sequence[int], fill: Callable[[SqliteStore, int], None]) -> Mapping[int, Path]:
    """Return a file for each number of waiting jobs: a copy of the one before, with more jobs, which `fill` enqueues."""
    files: dict[int, Path] = {}
    waiting, last = 0, None
    for level in levels:
        file = files[level] = folder / f"{level}.db"
        if last is not None:
            shutil.copyfile(last, file)
        with prepared_store.joined_store(file) as store:
            fill(store, level - waiting)
        waiting, last = level, file
    return files


def compare_claims(run: Run, files: Mapping[int, Path]) -> None:
    table = run.table(NAME, TITLE, list(MEASURES.values()))
    table.ours = _waiting(min(files))
    table.note(f"a query of what waits and a claim in one transaction; the last column is against {table.ours}")
    with contextlib.ExitStack() as stack:
        stores = {level: stack.enter_context(prepared_store.joined_store(file)) for level, file in files.items()}
        contenders = {_waiting(level): partial(claims, store) for level, store in stores.items()}
        run.compare(table, contenders, ROUNDS * run.rounds)


def claims(store: SqliteStore) -> Mapping[str, float]:
    """Return medians. Before each claim the same number of jobs waits; enqueues and settles are not in the time."""
    prepared_store.fill(store, MANY)
    times = {count: [claimed(store, count) for _ in range(CLAIMS[count])] for count in (ONE, MANY)}
    prepared_store.succeed(store, prepared_store.claim(store, MANY))
    return {MEASURES[count].name: statistics.median(took) * 1e3 for count, took in times.items()}


def claimed(store: SqliteStore, count: int) -> float:
    began = time.perf_counter()
    leases = prepared_store.claim(store, count)
    took = time.perf_counter() - began
    prepared_store.succeed(store, leases)
    prepared_store.fill(store, count)
    return took


def compare_memory(run: Run, file: Path, waiting: int) -> None:
    drained = DRAINED // 10 if run.quick else DRAINED
    title = f"the supervisor's parent process once it has drained {drained:,} no-op jobs; wanted: no growth"
    table = run.table(f"{NAME}, memory", title, [PEAK, MEMORY])
    table.ours = _waiting(2 * drained)
    contenders = {table.ours: partial(memory, None, drained)}
    run.compare(table, contenders | {_waiting(waiting): partial(memory, file, drained)})


def memory(file: Path | None, drained: int) -> Mapping[str, float]:
    """Measure a supervisor on a copy of this file, or on a store with twice as many jobs as it drains."""
    with deployed(SUPERVISOR) as contender:
        database = ours.database(contender.deployment)
        if file is None:
            with prepared_store.joined_store(database) as store:
                prepared_store.fill(store, 2 * drained)
        else:
            shutil.copyfile(file, database)
        with ours.store_reader(contender.deployment) as reader, contender.workers() as (process,):
            before = reader.succeeded()
            wait_until(lambda: reader.succeeded() >= before + drained, f"{drained} jobs settled", every=0.02)
            return {PEAK.name: peak_rss(process.pid) / 1e6, MEMORY.name: pss(process.pid) / 1e6}


def _waiting(level: int) -> str:
    return f"{level:,} waiting"
