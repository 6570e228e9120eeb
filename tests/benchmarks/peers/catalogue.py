"""The peers, and the commands that start their workers. This module imports none of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from tests.benchmarks.peers import ours
from tests.benchmarks.peers.base import Deployment, Peer
from tests.benchmarks.table import OURS

_CODE = "tests.benchmarks.peers"


def _python(*arguments: object) -> list[str]:
    return [sys.executable, "-m", *map(str, arguments)]


def _huey(storage: str) -> Peer:
    def commands(deployment: Deployment) -> Sequence[Sequence[str]]:
        huey = f"{_CODE}.huey_{storage}.huey"
        return [_python("huey.bin.huey_consumer", huey, "-k", "process", "-w", deployment.settings.workers, "-q")]

    redis = storage == "redis"
    return Peer(
        f"huey-{storage}",
        f"Huey on {'Redis' if redis else 'SQLite'}",
        f"huey_{storage}",
        ("huey", "redis") if redis else ("huey",),
        "redis" if redis else None,
        3000,
        "removes a job from the queue before it runs, so the job is lost with its worker",
        commands,
    )


def _celery(deployment: Deployment) -> Sequence[Sequence[str]]:
    return [
        _python("celery", "-A", f"{_CODE}.celery", "-q", "worker", "-c", deployment.settings.workers, "-l", "WARNING")
    ]


def _celery_threads(deployment: Deployment) -> Sequence[Sequence[str]]:
    celery, concurrency = f"{_CODE}.celery", deployment.settings.concurrency
    return [_python("celery", "-A", celery, "-q", "worker", "-P", "threads", "-c", concurrency, "-l", "WARNING")]


def _saq(deployment: Deployment) -> Sequence[Sequence[str]]:
    return [_python(f"{_CODE}.saq")]


def _one_pgqueuer(deployment: Deployment) -> Sequence[Sequence[str]]:
    return [_python(f"{_CODE}.pgqueuer")]


def _dramatiq(deployment: Deployment) -> Sequence[Sequence[str]]:
    return [_python("dramatiq", f"{_CODE}.dramatiq", "-p", deployment.settings.workers, "-t", 1)]


def _rq(deployment: Deployment) -> Sequence[Sequence[str]]:
    return [_python("rq.cli", "worker", "--url", deployment.url, "-q")] * deployment.settings.workers


def _procrastinate(deployment: Deployment) -> Sequence[Sequence[str]]:
    worker = _python("procrastinate", "--app", f"{_CODE}.procrastinate.app", "--log-level", "warning", "worker")
    return [worker] * deployment.settings.workers


def _pgqueuer(deployment: Deployment) -> Sequence[Sequence[str]]:
    return [_python(f"{_CODE}.pgqueuer")] * deployment.settings.workers


def _apart(deployment: Deployment) -> Sequence[Sequence[str]]:
    return [["unshare", "--net", "--", *command] for command in ours.commands_of_single_workers(deployment)]


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
    commands=ours.commands_of_single_workers,
)
SUPERVISORS = replace(
    SUPERVISOR,
    name="supervisors",
    title=f"2 x {OURS} on SQLite, 1 worker each",
    commands=ours.commands_of_single_workers,
)
SUPERVISORS_APART = replace(
    SUPERVISORS_POSTGRES, title=f"{SUPERVISORS_POSTGRES.title}, as on two machines", commands=_apart
)
"""Each supervisor has a network of its own. So none can see that the processes of another have ended, as if that were on another machine."""
HUEY_SQLITE = _huey("sqlite")
HUEY_REDIS = _huey("redis")
CELERY = Peer(
    "celery",
    "Celery prefork",
    "celery",
    ("celery", "redis"),
    "redis",
    750,
    "acknowledges a job before it runs, by default",
    _celery,
)
DRAMATIQ = Peer(
    "dramatiq",
    "Dramatiq",
    "dramatiq",
    ("dramatiq", "redis"),
    "redis",
    500,
    "runs jobs in threads: a job that holds the GIL is never interrupted",
    _dramatiq,
)
RQ = Peer(
    "rq",
    "RQ",
    "rq",
    ("rq", "redis"),
    "redis",
    110,
    "forks a process for each job; no retry by default",
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
    "no timeout; the job of a killed worker is not run again",
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
    "runs jobs on its own event loop: no timeout, and a job that blocks or crashes stops the others",
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
    "no store: waiting jobs are lost with the program",
    lambda deployment: [],
)

PEERS = (HUEY_SQLITE, HUEY_REDIS, CELERY, DRAMATIQ, RQ, PROCRASTINATE, PGQUEUER)
SAQ = Peer(
    "saq",
    "SAQ",
    "saq",
    ("saq", "redis"),
    "redis",
    2000,
    "loses a job with its worker, unless its retries are set",
    _saq,
)
ASYNC_PEERS = (
    replace(CELERY, name="celery-threads", title="Celery with threads", commands=_celery_threads),
    SAQ,
    replace(next(peer for peer in PEERS if peer.name == "pgqueuer"), commands=_one_pgqueuer),
)
"""Those that run many jobs at once in one process."""
