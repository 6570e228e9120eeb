"""This project: on PostgreSQL if its place has a server, else on SQLite."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from supervisor import Client
from supervisor.config.loading import load
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


def write(place: Place, workers: int | None = None) -> None:
    """The config and the plugin of this place; `workers` of each supervisor, all there are unless given."""
    settings = place.settings
    timeout = "" if settings.timeout is None else f", timeout: {settings.timeout:g}s"
    folder = Path(place.folder)
    (folder / "plugins").mkdir(exist_ok=True)
    (folder / "plugins" / "bench.py").write_text(PLUGIN)
    config(place).write_text(
        f"store: {json.dumps(_store(place))}\n"
        f"workers: {{count: {workers or settings.workers}{timeout}}}\n"
        f"retry: {{max_retries: {settings.retries}}}\n"
        "log: {level: warning}\n"
    )


def _store(place: Place) -> dict[str, str]:
    return {"url": place.url} if place.url else {"url": "sqlite:///jobs.db", "synchronous": place.settings.synchronous}


def config(place: Place) -> Path:
    return Path(place.folder, "supervisor.yaml")


def database(place: Place) -> Path:
    return Path(place.folder, "jobs.db")


def commands(place: Place) -> Sequence[Sequence[str]]:
    write(place)
    return [_command(place)]


def commands_apart(place: Place) -> Sequence[Sequence[str]]:
    """As many supervisors as there are workers, each with one of them."""
    write(place, workers=1)
    return [_command(place)] * place.settings.workers


def _command(place: Place) -> Sequence[str]:
    return [sys.executable, "-m", "supervisor", "run", "-c", str(config(place))]


class Store:
    """Asks the store behind the supervisor's back."""

    def __init__(self, ask: Callable[[str], Sequence[Any]], schema: str = "") -> None:
        self._ask, self._schema = ask, schema

    def succeeded(self, each: bool = False) -> int:
        """From the store's own counts, which costs nothing; or by counting each job."""
        what, table = ("count(*)", "jobs") if each else ("sum(n)", "counts")
        return int(self._ask(f"select {what} from {self._schema}{table} where state = {SUCCEEDED}")[0] or 0)

    def span(self) -> tuple[float, float]:
        """When the first of the jobs that succeeded started, and when the last was settled; seconds since the epoch."""
        first, last = self._ask(
            f"select min(started_at), max(finished_at) from {self._schema}jobs where state = {SUCCEEDED} and state >= {SUCCEEDED}"
        )
        return first / 1e6, last / 1e6


@contextlib.contextmanager
def asking(place: Place) -> Iterator[Store]:
    if place.url:
        with psycopg.connect(place.url, autocommit=True) as link:
            yield Store(lambda query: link.execute(query).fetchone() or (), "supervisor.")
    else:
        with contextlib.closing(sqlite3.connect(database(place))) as db:
            yield Store(lambda query: db.execute(query).fetchone())


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
