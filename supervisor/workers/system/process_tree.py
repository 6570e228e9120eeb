"""Who descends from whom, by /proc. Every answer is a snapshot: processes come and go while it is taken."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

from supervisor.workers.system import linux

MARK = "SUPERVISOR_WORKER"


class Stat(NamedTuple):
    state: str
    parent: int
    group: int
    cpu_seconds: float


class Mark(NamedTuple):
    """Whose program it is, as its environment says: `pid` is the worker's."""

    owner: str
    pid: int


_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """All of them, parents before their children."""
    found: list[int] = []
    waiting = children(pid)
    while waiting:
        found.extend(waiting)
        waiting = [grandchild for child in waiting for grandchild in children(child)]
    return found


def stat(pid: int) -> Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in brackets, may hold anything, brackets too.
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return Stat(fields[0].decode(), int(fields[1]), int(fields[2]), (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS)


def resident_bytes(pid: int) -> int | None:
    """None once it has gone; a zombie has no memory."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE or None
    except (OSError, IndexError):
        return None


def mark(pid: int) -> Mark | None:
    prefix = f"{MARK}=".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            values = [entry[len(prefix) :] for entry in file.read().split(b"\0") if entry.startswith(prefix)]
    except OSError:
        return None
    owner, _, worker = values[0].decode(errors="replace").rpartition(":") if values else ("", "", "")
    return Mark(owner, int(worker)) if worker.isdecimal() else None


def marked(owner: str) -> Iterator[int]:
    """Programs that any worker of this owner has started, wherever they have landed; none if there is no room to look."""
    try:
        entries = os.listdir("/proc")  # noqa: PTH208
    except OSError:
        return
    for entry in entries:
        if entry.isdecimal():
            found = mark(int(entry))
            if found is not None and found.owner == owner:
                yield int(entry)


def is_living(pid: int) -> bool:
    found = stat(pid)
    return found is not None and found.state not in "ZX"


class Snapshot:
    """Descendants of a process, each held by a pidfd, so that no other process of the same number is ever hit."""

    def __init__(self, pid: int) -> None:
        self._pidfds: list[int] = []
        found = descendants(pid)
        above = {pid, *found}
        for descendant in found:
            try:
                pidfd = os.pidfd_open(descendant)
            except OSError:
                continue
            # Its number may have passed to another process since it was read.
            now = stat(descendant)
            if now is not None and now.parent in above:
                self._pidfds.append(pidfd)
            else:
                os.close(pidfd)

    def kill(self) -> None:
        for pidfd in self._pidfds:
            linux.send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        self._pidfds.clear()
