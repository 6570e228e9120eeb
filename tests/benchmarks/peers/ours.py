"""This project, on SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from supervisor import Client
from supervisor.config import load
from supervisor.stores.codes import SUCCEEDED
from tests.benchmarks.peers.base import Payload, Place, Task, here

PLUGIN = """
from supervisor import Retry, handler, hookimpl
from tests.benchmarks import tasks


@handler
def noop(job):
    tasks.noop(job.payload)


@handler
def stamp(job):
    tasks.stamp(job.payload)


@handler
def sleep(job):
    tasks.sleep(job.payload)


@handler
def hang(job):
    tasks.hang(job.payload)


@handler
def die(job):
    tasks.die(job.payload)


@handler
def flaky(job):
    try:
        tasks.flaky(job.payload, job.attempt)
    except tasks.Again as again:
        raise Retry(str(again), after=again.delay) from again


@hookimpl
def supervisor_worker_started(worker):
    pass


@hookimpl(wrapper=True)
def supervisor_run(job):
    return (yield)


@hookimpl
def supervisor_events(events):
    pass
"""


def write(place: Place) -> None:
    """The config and the plugin of this place."""
    settings = place.settings
    timeout = "" if settings.timeout is None else f", timeout: {settings.timeout:g}s"
    folder = Path(place.folder)
    (folder / "plugins").mkdir(exist_ok=True)
    (folder / "plugins" / "bench.py").write_text(PLUGIN)
    config(place).write_text(
        f"store: {{url: 'sqlite:///jobs.db', synchronous: {settings.synchronous}}}\n"
        f"workers: {{count: {settings.workers}{timeout}}}\n"
        f"retry: {{max_retries: {settings.retries}}}\n"
        "log: {level: warning}\n"
    )


def config(place: Place) -> Path:
    return Path(place.folder, "supervisor.yaml")


def database(place: Place) -> Path:
    return Path(place.folder, "jobs.db")


def commands(place: Place) -> Sequence[Sequence[str]]:
    write(place)
    return [[sys.executable, "-m", "supervisor", "run", "-c", str(config(place))]]


class Store:
    """Asks the store behind the supervisor's back."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def succeeded(self, each: bool = False) -> int:
        """From the store's own counts, which costs nothing; or by counting each job."""
        query = "select count(*) from jobs where state = ?" if each else "select sum(n) from counts where state = ?"
        return int(self.db.execute(query, (SUCCEEDED,)).fetchone()[0] or 0)

    def span(self) -> tuple[float, float]:
        """When the first of the jobs that succeeded started, and when the last was settled; seconds since the epoch."""
        query = "select min(started_at), max(finished_at) from jobs where state = ? and state >= ?"
        first, last = self.db.execute(query, (SUCCEEDED, SUCCEEDED)).fetchone()
        return first / 1e6, last / 1e6


@contextlib.contextmanager
def asking(place: Place) -> Iterator[Store]:
    with contextlib.closing(sqlite3.connect(database(place))) as db:
        yield Store(db)


class Jobs:
    def __init__(self, client: Client) -> None:
        self._client = client

    def enqueue(self, task: Task, payload: Payload) -> None:
        self._client.enqueue(task, payload)

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        self._client.enqueue_many([(task, payload) for payload in payloads])


def connect() -> Jobs:
    """By the same config as the supervisor: `synchronous` is the client's business too."""
    place = here()
    write(place)
    return Jobs(Client(load(config(place)), create=True))
