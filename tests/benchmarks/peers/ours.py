"""This project, on PostgreSQL if the deployment has a server, else on SQLite."""

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
from supervisor.stores.opening import open_store
from supervisor.stores.protocol import Store
from tests.benchmarks.peers.base import Deployment, Payload, Task, current_deployment

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

ASYNC_PLUGIN = """
from supervisor import handler
from tests.benchmarks import tasks


@handler
async def nap(job):
    await tasks.nap(job.payload)


@handler
async def limited(job):
    await tasks.limited(job.payload)
"""


def write(deployment: Deployment, workers: int | None = None) -> None:
    """Write the config and the plugin. Each supervisor has `workers` worker processes, by default all of the deployment."""
    settings = deployment.settings
    timeout = "" if settings.timeout is None else f", timeout: {settings.timeout:g}s"
    folder = Path(deployment.folder)
    (folder / "plugins").mkdir(exist_ok=True)
    (folder / "plugins" / "bench.py").write_text(PLUGIN)
    if settings.concurrency:
        (folder / "plugins" / "async_bench.py").write_text(ASYNC_PLUGIN)
    limit = f"handlers: {{limited: {{limit: {{running: {settings.running}}}}}}}\n" if settings.running else ""
    lease = f"lease: {{ttl: {settings.lost_after:g}s}}\n" if settings.lost_after else ""
    http = f'http: {{listen: "127.0.0.1:{settings.http}"}}\n' if settings.http else ""
    config(deployment).write_text(
        f"store: {json.dumps(_store(deployment))}\n"
        f"workers: {{count: {workers or settings.workers}{timeout}, async: {{concurrency: {settings.concurrency or 100}}}}}\n"
        f"retry: {{max_retries: {settings.retries}}}\n"
        f"{limit}{lease}{http}log: {{level: warning}}\n{settings.limits}\n"
    )


def _store(deployment: Deployment) -> dict[str, str]:
    if deployment.url:
        return {"url": deployment.url}
    return {"url": "sqlite:///jobs.db", "synchronous": deployment.settings.synchronous}


def config(deployment: Deployment) -> Path:
    return Path(deployment.folder, "supervisor.yaml")


def database(deployment: Deployment) -> Path:
    return Path(deployment.folder, "jobs.db")


def commands(deployment: Deployment) -> Sequence[Sequence[str]]:
    write(deployment)
    return [_command(deployment)]


def commands_of_single_workers(deployment: Deployment) -> Sequence[Sequence[str]]:
    """Return the commands of as many supervisors as there are workers, each with one worker."""
    write(deployment, workers=1)
    return [_command(deployment)] * deployment.settings.workers


def _command(deployment: Deployment) -> Sequence[str]:
    return [sys.executable, "-m", "supervisor", "run", "-c", str(config(deployment))]


class StoreReader:
    """Reads the database of a store directly. `query` returns the first row."""

    def __init__(self, query: Callable[[str], Sequence[Any]], schema: str = "") -> None:
        self._query, self._schema = query, schema

    def succeeded(self, each: bool = False) -> int:
        """Return the number of succeeded jobs by the store's own counts, which is cheap, or by counting `each` job."""
        number, table = ("count(*)", "jobs") if each else ("sum(n)", "counts")
        return int(self._query(f"select {number} from {self._schema}{table} where state = {SUCCEEDED}")[0] or 0)

    def span(self) -> tuple[float, float]:
        """Return when the first succeeded job started and when the last was settled, in seconds since the epoch."""
        first, last = self._query(
            f"select min(started_at), max(finished_at) from {self._schema}jobs where state = {SUCCEEDED} and state >= {SUCCEEDED}"
        )
        return first / 1e6, last / 1e6


@contextlib.contextmanager
def store_reader(deployment: Deployment) -> Iterator[StoreReader]:
    if deployment.url:
        with psycopg.connect(deployment.url, autocommit=True) as connection:
            yield StoreReader(lambda query: connection.execute(query).fetchone() or (), "supervisor.")
    else:
        with contextlib.closing(sqlite3.connect(database(deployment))) as db:
            yield StoreReader(lambda query: db.execute(query).fetchone())


@contextlib.contextmanager
def opened_store(deployment: Deployment) -> Iterator[Store]:
    write(deployment)
    settings = load(config(deployment))
    store = open_store(settings.store, create=True, base=settings.base)
    try:
        yield store
    finally:
        store.close()


class Jobs:
    def __init__(self, client: Client) -> None:
        self._client = client

    def enqueue(self, task: Task, payload: Payload) -> None:
        self._client.enqueue(task, payload)

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        self._client.enqueue_many([(task, payload) for payload in payloads])


def connect() -> Jobs:
    """Use the config of the supervisor, since `synchronous` affects the client too."""
    deployment = current_deployment()
    write(deployment)
    return Jobs(Client(load(config(deployment)), create=True))
