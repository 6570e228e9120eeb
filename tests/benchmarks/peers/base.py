"""Peers: data about them. The code of a peer is in a module that only its own processes import."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

Task = Literal["noop", "stamp", "sleep", "hang", "die", "flaky", "nap", "limited"]
Payload = Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """The settings of a contender. A peer ignores those that it doesn't have.

    timeout: seconds of one attempt, None for the peer's default. late: acknowledge after the job, not before (Celery).
    prefetch: number of jobs that a worker reserves, None for the peer's default. synchronous: of our SQLite store.
    retries: number of retries of a failed job. concurrency: jobs that a worker process runs at once, 0 if it runs one.
    http: the port of our HTTP server, 0 for none. limits: of our config. running: jobs of the task `limited` that may run at once over all
    workers, 0 for no limit. lost_after: seconds after which a worker is taken for lost, None for the peer's default.
    """

    workers: int = 2
    timeout: float | None = None
    late: bool = False
    prefetch: int | None = None
    synchronous: Literal["full", "normal"] = "full"
    retries: int = 0
    concurrency: int = 0
    http: int = 0
    limits: str = ""
    running: int = 0
    lost_after: float | None = None


@dataclass(frozen=True)
class Deployment:
    """The folder, the URL of the server, if any, and the settings of one contender.

    Each of its processes gets them in its environment.
    """

    folder: str
    url: str = ""
    settings: Settings = field(default_factory=Settings)

    def environment(self) -> dict[str, str]:
        return {_VARIABLE: json.dumps(asdict(self))}


_VARIABLE = "SUPERVISOR_BENCHMARK_DEPLOYMENT"


def current_deployment() -> Deployment:
    """Return the deployment that this process of a contender belongs to."""
    values = json.loads(os.environ[_VARIABLE])
    return Deployment(values["folder"], values["url"], Settings(**values["settings"]))


class Commands(Protocol):
    """Returns the command lines of the workers of a peer, with `settings.workers` worker processes in all."""

    def __call__(self, deployment: Deployment) -> Sequence[Sequence[str]]: ...


@dataclass(frozen=True)
class Peer:
    """`name` on the command line, `title` in the tables, `module` in `tests.benchmarks.peers`, and names of distributions on PyPI,
    of which the first is the peer.

    `drains` is roughly how many jobs it runs per second: from it follows the number of jobs, so that a measurement takes seconds.
    `lacks` are features that ours has and the peer hasn't, printed below its figures. `bulk`: it has a call for many jobs.
    """

    name: str
    title: str
    module: str
    distributions: tuple[str, ...]
    server: Literal["redis", "postgresql"] | None
    drains: int
    lacks: str
    commands: Commands
    bulk: bool = False


class Code(Protocol):
    """The module of a peer, as its client process uses it. Its tasks call `tests.benchmarks.tasks`."""

    def connect(self) -> Enqueuer:
        """Connect to the server of the current deployment, and create the tables that are needed."""


class Enqueuer(Protocol):
    """Enqueues tasks by name. A job is as durable as this peer can make it once a method has returned."""

    def enqueue(self, task: Task, payload: Payload) -> None: ...

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        """Enqueue by the peer's call for many jobs, or one by one if it has none."""
