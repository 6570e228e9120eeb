"""Ready jobs drained beside a schedule full of jobs that are not due, and beside an empty one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.benchmarks import prepared_store
from tests.benchmarks.contender import deployed
from tests.benchmarks.peers import ours
from tests.benchmarks.peers.catalogue import SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure
from tests.benchmarks.wait import wait_until

NAME = "backlog"
TITLE = "ready no-op jobs drained beside a full and an empty schedule; wanted: within 10 %"
READY, DELAYED, BACKOFFS = 10_000, 1_000_000, 100_000
QUICK_DIVISOR = 100
ROUNDS = 5  # for each round of the run, since a drain of 10,000 jobs takes a fraction of a second
RATE = Measure("drain", "jobs/s", "more")


def run(run: Run) -> None:
    ready, delayed, backoffs = (count // QUICK_DIVISOR if run.quick else count for count in (READY, DELAYED, BACKOFFS))
    table = run.table(NAME, TITLE, [RATE])
    table.ours = f"{delayed:,} delayed, {backoffs:,} in backoff"
    table.note(
        f"{ready:,} ready jobs, from the start of the first to the last settled as succeeded; the last column is"
    )
    table.note("against the full schedule")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        full, empty = Path(folder, "full.db"), Path(folder, "empty.db")
        run.show_progress(f"{NAME}: filling the schedule")
        with prepared_store.joined_store(full) as store:
            prepared_store.fill_with_backoffs(store, backoffs)
            prepared_store.fill(store, delayed, delay=prepared_store.LATER)
        with prepared_store.joined_store(empty):
            pass
        contenders = {table.ours: partial(drained, full, ready), "empty schedule": partial(drained, empty, ready)}
        run.compare(table, contenders, 1 if run.quick else ROUNDS * run.rounds)


def drained(file: Path, ready: int) -> Mapping[str, float]:
    """Drain the ready jobs over a copy of this file."""
    with deployed(SUPERVISOR) as contender:
        shutil.copyfile(file, ours.database(contender.deployment))
        with prepared_store.joined_store(ours.database(contender.deployment)) as store:
            prepared_store.fill(store, ready)
        with ours.store_reader(contender.deployment) as reader, contender.workers():
            wait_until(lambda: reader.succeeded() >= ready, f"{ready} jobs settled", every=0.02)
            first, last = reader.span()
        return {RATE.name: ready / (last - first)}
