"""What a peer is to the rows: data about it here, its code in a module that only processes of its own import."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

Task = Literal["noop", "stamp", "sleep", "hang", "die", "flaky"]
Payload = Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """How a contender is set up for a row. A peer ignores what it doesn't have; `lacks` says so in words.

    timeout: seconds an attempt may run; None: the peer's default. late: acknowledge after the job, not before (Celery).
    prefetch: jobs a worker reserves ahead; None: the peer's default. synchronous: of our SQLite store.
    retries: how often a failed job is run again.
    """

    workers: int = 2
    timeout: float | None = None
    late: bool = False
    prefetch: int | None = None
    synchronous: Literal["full", "normal"] = "full"
    retries: int = 0


@dataclass(frozen=True)
class Place:
    """Where one contender lives for a while: a folder of its own, its server if it needs one, how it is set up.

    `url` is that of its server. Handed to every process of the contender in its environment.
    """

    folder: str
    url: str = ""
    settings: Settings = field(default_factory=Settings)

    def environment(self) -> dict[str, str]:
        return {_VARIABLE: json.dumps(asdict(self))}


_VARIABLE = "SUPERVISOR_BENCHMARK_PLACE"


def here() -> Place:
    """In a process of a contender: the place it belongs to."""
    place = json.loads(os.environ[_VARIABLE])
    return Place(place["folder"], place["url"], Settings(**place["settings"]))


class Commands(Protocol):
    """The programs that make up the workers of a peer, two worker processes in all unless `settings.workers` says otherwise."""

    def __call__(self, place: Place) -> Sequence[Sequence[str]]: ...


@dataclass(frozen=True)
class Peer:
    """`name` on the command line, `title` in the tables, `module` in `tests.benchmarks.peers`, `distributions` as pip calls them (the first is the peer).

    `drains`: jobs a second that it does about, so that a measurement takes seconds and not minutes.
    `lacks`: what it does less than ours, to be read beside its figures. `bulk`: it has a call that enqueues many.
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
    """What a peer's module offers to its client process; the tasks call `tests.benchmarks.tasks`."""

    def connect(self) -> Enqueuer:
        """Opens what is needed to enqueue, in the place that the environment names; makes tables if it needs some."""


class Enqueuer(Protocol):
    """Enqueues tasks by name. A job is accepted, as safely as this peer can, once a method has returned."""

    def enqueue(self, task: Task, payload: Payload) -> None: ...

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        """By the peer's call for many; one by one, if it has none."""
