"""Jobs under a limit over two worker processes, beside PgQueuer's `concurrency_limit` and Procrastinate's `lock`: the rate, how many run at
once, and how long a place is lost when one of the two is killed."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from tests.benchmarks.client import Client
from tests.benchmarks.contender import deployed
from tests.benchmarks.peers.base import Peer, Settings
from tests.benchmarks.peers.catalogue import (
    PGQUEUER,
    PROCRASTINATE,
    SUPERVISORS,
    SUPERVISORS_APART,
    SUPERVISORS_POSTGRES,
)
from tests.benchmarks.processes import is_running, kill, tree
from tests.benchmarks.run import Run
from tests.benchmarks.stamps import Stamps
from tests.benchmarks.table import Measure, Table
from tests.benchmarks.wait import wait_until

NAME = "limits"
JOBS = 500
AFTER = 50
"""Jobs that wait when a worker is killed."""
SECONDS = 0.005
CONCURRENCY = 4
LOST_AFTER = 5.0
BOUND = 20.0
RATE = Measure("rate", "jobs/s", "more")
MOST = Measure("most at once", "jobs", "less")
MOST_KILLED = Measure("most at once, one killed", "jobs", "less")
NEXT = Measure("kill to next start", "ms", "less")
OURS = (SUPERVISORS_POSTGRES, SUPERVISORS_APART, SUPERVISORS)
Line = tuple[str, int, int]


def compare_limits(run: Run) -> None:
    for running, peers, best in ((2, [PGQUEUER], "400"), (1, [PGQUEUER, PROCRASTINATE], "200")):
        _compare(run, running, run.wanted(peers), best)


def _compare(run: Run, running: int, peers: Sequence[Peer], best: str) -> None:
    title = f"jobs that sleep 5 ms, at most {running} at once over 2 worker processes; the ideal is {best} jobs/s"
    table = run.table(NAME, title, [RATE, MOST, MOST_KILLED, NEXT])
    table.ours = SUPERVISORS_POSTGRES.title
    jobs = JOBS // 5 if run.quick else JOBS
    table.note(
        f"{jobs:,} jobs, coroutines in all contenders; the jobs stamp their start and end, which shows how many run at once"
    )
    table.note(
        "kill to next start: SIGKILL of one of the two, with all its processes, while jobs of an hour have all places"
    )
    table.note(
        f"lease, or timeout of the heartbeat: {LOST_AFTER:g} s (by default 30 s in this project and in PgQueuer)"
    )
    table.note(
        f"{SUPERVISORS_APART.title}: a network of its own each, so only the lease shows that the other one has ended"
    )
    if PGQUEUER in peers:
        table.note(
            f"{PGQUEUER.title}: concurrency_limit={running}; when all places are taken it looks for a free one every 100 ms"
        )
    if PROCRASTINATE in peers:
        table.note(f"{PROCRASTINATE.title}: a lock; it stays taken until a program of the user retries the stalled job")
        table.note(
            f"{PROCRASTINATE.title}: one job at once in each process, as by default; with more it polls every 5 s under a lock"
        )
    run.compare(table, {peer.title: partial(measured, peer, running, jobs, table) for peer in (*OURS, *peers)})


def measured(peer: Peer, running: int, jobs: int, table: Table) -> Mapping[str, float]:
    settings = Settings(workers=2, concurrency=CONCURRENCY, running=running, lost_after=LOST_AFTER)
    with deployed(peer, settings) as contender, contender.client() as client:
        drained, killed = contender.stamps("drained"), contender.stamps("killed")
        client.enqueue_many("limited", [drained.payload(number, seconds=SECONDS) for number in range(jobs)])
        with contender.workers() as workers:
            drained.wait(2 * jobs, every=0.02)
            lines = drained.lines()
            figures = {RATE.name: jobs * 1e9 / (lines[-1][1] - lines[0][1]), MOST.name: most_at_once(lines)}
            at, victims = kill_one(client, workers, killed, running)
            started = next_start(killed, at, AFTER)
            figures[MOST_KILLED.name] = most_at_once(killed.lines(), at, victims)
    if started is None:
        table.note(f"{peer.title}: after the kill no job of the limit started within {BOUND:g} s")
        return figures
    return {**figures, NEXT.name: (started - at) / 1e6}


def kill_one(
    client: Client, workers: Iterable[subprocess.Popen[bytes]], stamps: Stamps, running: int
) -> tuple[int, set[int]]:
    """Give all places to jobs that hang, let more jobs wait, and kill the worker that has the first place, with all processes below.
    Return when, and the pids of those processes."""
    client.enqueue_many(
        "limited", [stamps.payload(f"held-{number}", seconds=SECONDS, hold=True) for number in range(running)]
    )
    stamps.wait(running)
    client.enqueue_many("limited", [stamps.payload(number, seconds=SECONDS) for number in range(AFTER)])
    _id, _at, pid = stamps.lines()[0]
    victim = next(below for below in [tree(worker.pid) for worker in workers] if pid in {one.pid for one in below})
    at = time.time_ns()
    kill(sorted(victim, key=lambda one: one.pid != pid))
    wait_until(lambda: not any(map(is_running, victim)), "the end of the killed processes")
    return at, {one.pid for one in victim}


def next_start(stamps: Stamps, at: int, jobs: int) -> int | None:
    """Wait until so many jobs have started after this time, and return when the first did, or None if none did."""

    def starts() -> list[int]:
        return [when for id, when, _pid in stamps.lines() if id.startswith("+") and when > at]

    with contextlib.suppress(TimeoutError):
        wait_until(lambda: len(starts()) >= jobs, "", BOUND, every=0.02)
    return min(starts(), default=None)


def most_at_once(lines: Sequence[Line], killed_at: int = 0, victims: Iterable[int] = ()) -> int:
    """Return how many jobs ran at once, at most. Those of the victims run until these are killed."""
    dead, running, most = set(victims), dict[str, int](), 0
    for id, at, pid in lines:
        if dead and at > killed_at:
            running = {job: of for job, of in running.items() if of not in dead}
            dead.clear()
        if id.startswith("+"):
            running[id[1:]] = pid
            most = max(most, len(running))
        else:
            running.pop(id[1:], None)
    return most
