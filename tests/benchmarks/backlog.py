"""Ready jobs drained beside a schedule full of jobs that are not due, and beside an empty one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.benchmarks import prepared_store
from tests.benchmarks.contender import site
from tests.benchmarks.peers import ours
from tests.benchmarks.peers.catalogue import SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure
from tests.benchmarks.wait import until

NAME = "backlog"
TITLE = "ready no-op jobs drained beside a full and an empty schedule; wanted: within 10 %"
READY, DELAYED, BACKOFFS = 10_000, 1_000_000, 100_000
QUICK = 100  # a hundredth of all
ROUNDS = 5  # of each round of the run: a drain of 10,000 takes a fraction of a second
RATE = Measure("drain", "jobs/s", "more")


def run(run: Run) -> None:
    ready, delayed, backoffs = (count // QUICK if run.quick else count for count in (READY, DELAYED, BACKOFFS))
    table = run.table(NAME, TITLE, [RATE])
    table.ours = f"{delayed:,} delayed, {backoffs:,} in backoff"
    table.note(
        f"{ready:,} ready jobs, from the start of the first to the last settled as succeeded; the last column is"
    )
    table.note("against the full schedule")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        full, empty = Path(folder, "full.db"), Path(folder, "empty.db")
        run.say(f"{NAME}: filling the schedule")
        with prepared_store.joined(full) as store:
            prepared_store.fill_with_backoffs(store, backoffs)
            prepared_store.fill(store, delayed, delay=prepared_store.LATER)
        with prepared_store.joined(empty):
            pass
        contenders = {table.ours: partial(drained, full, ready), "empty schedule": partial(drained, empty, ready)}
        run.compare(table, contenders, 1 if run.quick else ROUNDS * run.rounds)


def drained(file: Path, ready: int) -> Mapping[str, float]:
    """Jobs a second, over a copy of this file."""
    with site(SUPERVISOR) as place:
        shutil.copyfile(file, ours.database(place.place))
        with prepared_store.joined(ours.database(place.place)) as store:
            prepared_store.fill(store, ready)
        with ours.asking(place.place) as asked, place.workers():
            until(lambda: asked.succeeded() >= ready, f"{ready} jobs settled", every=0.02)
            first, last = asked.span()
        return {RATE.name: ready / (last - first)}
