"""Who takes part, and how the workers of each are started. Imports none of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from tests.benchmarks.peers import ours
from tests.benchmarks.peers.base import Peer, Place
from tests.benchmarks.table import OURS

_CODE = "tests.benchmarks.peers"


def _python(*words: object) -> list[str]:
    return [sys.executable, "-m", *map(str, words)]


def _huey(storage: str) -> Peer:
    def commands(place: Place) -> Sequence[Sequence[str]]:
        huey = f"{_CODE}.huey_{storage}.huey"
        return [_python("huey.bin.huey_consumer", huey, "-k", "process", "-w", place.settings.workers, "-q")]

    redis = storage == "redis"
    return Peer(
        f"huey-{storage}",
        f"Huey on {'Redis' if redis else 'SQLite'}",
        f"huey_{storage}",
        ("huey", "redis") if redis else ("huey",),
        "redis" if redis else None,
        3000,
        "a job leaves the queue before it runs, and is lost with its worker",
        commands,
    )


def _celery(place: Place) -> Sequence[Sequence[str]]:
    return [_python("celery", "-A", f"{_CODE}.celery", "-q", "worker", "-c", place.settings.workers, "-l", "WARNING")]


def _dramatiq(place: Place) -> Sequence[Sequence[str]]:
    return [_python("dramatiq", f"{_CODE}.dramatiq", "-p", place.settings.workers, "-t", 1)]


def _rq(place: Place) -> Sequence[Sequence[str]]:
    return [_python("rq.cli", "worker", "--url", place.url, "-q")] * place.settings.workers


def _procrastinate(place: Place) -> Sequence[Sequence[str]]:
    worker = _python("procrastinate", "--app", f"{_CODE}.procrastinate.app", "--log-level", "warning", "worker")
    return [worker] * place.settings.workers


def _pgqueuer(place: Place) -> Sequence[Sequence[str]]:
    return [_python(f"{_CODE}.pgqueuer")] * place.settings.workers


SUPERVISOR = Peer(OURS, OURS, "ours", ("job-supervisor",), None, 50_000, "", ours.commands, bulk=True)
SUPERVISOR_POSTGRES = Peer(
    "supervisor-postgres",
    f"{OURS} on PostgreSQL",
    "ours",
    ("job-supervisor", "psycopg"),
    "postgresql",
    15_000,
    "",
    ours.commands,
    bulk=True,
)
SUPERVISORS_POSTGRES = replace(
    SUPERVISOR_POSTGRES,
    name="supervisors-postgres",
    title=f"2 x {OURS} on PostgreSQL, 1 worker each",
    commands=ours.commands_apart,
)
HUEY_SQLITE = _huey("sqlite")
HUEY_REDIS = _huey("redis")
CELERY = Peer(
    "celery",
    "Celery prefork",
    "celery",
    ("celery", "redis"),
    "redis",
    750,
    "acknowledges before the job runs unless told otherwise",
    _celery,
)
DRAMATIQ = Peer(
    "dramatiq",
    "Dramatiq",
    "dramatiq",
    ("dramatiq", "redis"),
    "redis",
    500,
    "runs jobs in threads: what holds the GIL is never interrupted",
    _dramatiq,
)
RQ = Peer(
    "rq",
    "RQ",
    "rq",
    ("rq", "redis"),
    "redis",
    110,
    "forks a process for each job; no retry unless asked for",
    _rq,
    bulk=True,
)
PROCRASTINATE = Peer(
    "procrastinate",
    "Procrastinate",
    "procrastinate",
    ("procrastinate", "psycopg"),
    "postgresql",
    450,
    "no timeout; a job whose worker died stays where it was",
    _procrastinate,
    bulk=True,
)
PGQUEUER = Peer(
    "pgqueuer",
    "PgQueuer",
    "pgqueuer",
    ("pgqueuer", "asyncpg"),
    "postgresql",
    7_000,
    "runs jobs on its own event loop: no timeout, and what blocks or dies takes the others with it",
    _pgqueuer,
    bulk=True,
)
PEBBLE = Peer(
    "pebble",
    "pebble.ProcessPool",
    "pebble",
    ("Pebble",),
    None,
    10_000,
    "no store: what waits is gone with the program",
    lambda place: [],
)

PEERS = (HUEY_SQLITE, HUEY_REDIS, CELERY, DRAMATIQ, RQ, PROCRASTINATE, PGQUEUER)
