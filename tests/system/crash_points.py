"""The real command, that kills itself with SIGKILL where it is told to:

    python -m tests.system.crash_points POINT python -m supervisor run ...

It says so on standard error first, so that a test knows that the point was reached.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from supervisor.dead_letters import file_sink as file
from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.engine.committer import Committer
from supervisor.engine.fetcher import Fetcher
from supervisor.events import Bus, DeadLettersPublished, LeasesRecovered
from supervisor.runtime import supervisor  # noqa: F401  the engine, without which there is nothing to wrap
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.store import SqliteStore
from supervisor.workers.slot import WorkerSlot

MARK = "killed at the crash point"
Test = Callable[..., bool]


def always(*arguments: Any) -> bool:
    return True


def claimed_some(fetcher: Fetcher, future: Any, *rest: Any) -> bool:
    return bool(future.result().leases)


def event(kind: type) -> Test:
    return lambda bus, event: isinstance(event, kind)


BEFORE: dict[str, tuple[Any, str, Test]] = {
    "a claim is durable and not heard of": (Fetcher, "_claimed", claimed_some),
    "leases are held and not dispatched": (WorkerSlot, "send", always),
    "an outcome has arrived": (Committer, "add", always),
    "a settle is durable and not heard of": (Committer, "_settled", always),
    "letters are accepted by one sink": (Bus, "emit", event(DeadLettersPublished)),
    "a recovery is durable and not heard of": (Bus, "emit", event(LeasesRecovered)),
    "letters are about to be claimed": (DeadLetterPublisher, "look", always),
    "all is done and the owner has not left": (SqliteStore, "leave", always),
    "the owner has left and its files are there": (Notifier, "leave", always),
    "a bell is about to ring": (Notifier, "notify", always),
}
"""Dies when this method is called, the first time that the test of its arguments holds."""

AFTER: dict[str, tuple[Any, str, Test]] = {
    "a lock is held that no row names": (Notifier, "join", always),
    "the owner is registered": (SqliteStore, "join", always),
    "a claim is written and not committed": (SqliteStore, "claim", bool),
    "a settle is written and not committed": (SqliteStore, "settle", always),
    "a recovery is written and not committed": (SqliteStore, "recover", always),
    "a sink has taken letters": (file.FileSink, "publish", always),
    "an acceptance is written and not committed": (SqliteStore, "mark_accepted", always),
}
"""Dies when this method has returned, the first time that the test of what it returns holds."""

PART_OF_A_LINE = "a part of a letter is in the file"
POINTS = (*BEFORE, *AFTER, PART_OF_A_LINE)


def die(point: str) -> None:
    os.write(2, f"{MARK}: {point}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


def install(point: str) -> None:
    if point in BEFORE:
        die_before(point, *BEFORE[point])
    elif point in AFTER:
        die_after(point, *AFTER[point])
    else:
        die_in_a_line(point)


def die_before(point: str, owner: Any, name: str, holds: Test) -> None:
    method = getattr(owner, name)

    def dying(*arguments: Any, **options: Any) -> Any:
        if holds(*arguments):
            die(point)
        return method(*arguments, **options)

    setattr(owner, name, dying)


def die_after(point: str, owner: Any, name: str, holds: Test) -> None:
    method = getattr(owner, name)

    def dying(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        if holds(result):
            die(point)
        return result

    setattr(owner, name, dying)


def die_in_a_line(point: str) -> None:
    def write(fd: int, data: bytes) -> None:
        os.write(fd, data[: len(data) // 3])  # not at the end of one of two lines
        die(point)

    file._write = write


if __name__ == "__main__":
    point, _, _, _, *arguments = sys.argv[1:]
    install(point)
    sys.argv[1:] = arguments
    from supervisor.cli import main

    main()
