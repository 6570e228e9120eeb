"""The real command, which kills itself with SIGKILL at a given point:

    python -m tests.system.crash_points POINT python -m supervisor run ...

Before that it writes the point to standard error, so that a test knows that it was reached.
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
from supervisor.runtime import supervisor  # noqa: F401  imports the classes whose methods are wrapped
from supervisor.stores.sqlite.dead_letters import DeadLetterQueue
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.owner_lock import OwnerLock
from supervisor.stores.sqlite.ownership import Ownership
from supervisor.stores.sqlite.queue import Queue
from supervisor.stores.sqlite.recovery import Recovery
from supervisor.stores.sqlite.settle import Settles
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
    "a claim is committed and its leases are not received": (Fetcher, "_claimed", claimed_some),
    "leases are held and not sent to a worker": (WorkerSlot, "send", always),
    "an outcome has arrived": (Committer, "add", always),
    "a settle is committed and its answer is not received": (Committer, "_settled", always),
    "dead letters are accepted by one sink": (Bus, "emit", event(DeadLettersPublished)),
    "a recovery is committed and its answer is not received": (Bus, "emit", event(LeasesRecovered)),
    "a recovery has removed the row of an owner and its files are there": (Recovery, "_remove", always),
    "dead letters are about to be claimed": (DeadLetterPublisher, "look", always),
    "all is done and the owner has not left": (Ownership, "leave", always),
    "the owner has left and its files are there": (Notifier, "unbind", always),
    "other supervisors are about to be notified": (Notifier, "notify", always),
}
"""Kills the process when this method is called, the first time that the test of its arguments holds."""

AFTER: dict[str, tuple[Any, str, Test]] = {
    "a lock is held and the owner has no row yet": (OwnerLock, "take", always),
    "the owner is registered": (Ownership, "join", always),
    "a claim is written and not committed": (Queue, "claim", bool),
    "a settle is written and not committed": (Settles, "settle", always),
    "a recovery is written and not committed": (Settles, "recover", always),
    "a sink has taken dead letters": (file.FileSink, "publish", always),
    "an acceptance is written and not committed": (DeadLetterQueue, "mark_accepted", always),
}
"""Kills the process when this method has returned, the first time that the test of its result holds."""

PART_OF_A_LINE = "a part of a dead letter is in the file"
POINTS = (*BEFORE, *AFTER, PART_OF_A_LINE)


def kill_itself(point: str) -> None:
    os.write(2, f"{MARK}: {point}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


def install(point: str) -> None:
    if point in BEFORE:
        kill_before(point, *BEFORE[point])
    elif point in AFTER:
        kill_after(point, *AFTER[point])
    else:
        kill_in_a_line(point)


def kill_before(point: str, owner: Any, name: str, holds: Test) -> None:
    method = getattr(owner, name)

    def killing(*arguments: Any, **options: Any) -> Any:
        if holds(*arguments):
            kill_itself(point)
        return method(*arguments, **options)

    setattr(owner, name, killing)


def kill_after(point: str, owner: Any, name: str, holds: Test) -> None:
    method = getattr(owner, name)

    def killing(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        if holds(result):
            kill_itself(point)
        return result

    setattr(owner, name, killing)


def kill_in_a_line(point: str) -> None:
    def write(fd: int, data: bytes) -> None:
        os.write(fd, data[: len(data) // 3])  # not at the end of one of two lines
        kill_itself(point)

    file._write = write


if __name__ == "__main__":
    point, _, _, _, *arguments = sys.argv[1:]
    install(point)
    sys.argv[1:] = arguments
    from supervisor.cli import main

    main()
