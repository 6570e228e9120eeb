"""Marks, by which programs are found that an owner has started, even with a session of their own and an empty environment.

A mark is a soft limit of file locks. This limit has no effect since Linux 2.4.25, is inherited by whatever a process starts, and can
be read of every process, zombies too.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from hashlib import blake2b

SUPERVISOR = 0
"""Stands for the pid of the supervisor, whose plugins may start programs that outlive it."""

FILE_LOCKS = 10  # RLIMIT_LOCKS, which the module `resource` has no name for
_SHOWN = re.compile(rb"^Max file locks +(\d+)", re.MULTILINE)
_MARKED = 1 << 62
_PID_BITS = 22  # Linux has no higher pids


def set_mark(owner: str, pid: int) -> bool:
    """Mark this process, and what it starts from now on. Return whether its limits allow that."""
    try:
        resource.setrlimit(FILE_LOCKS, (_mark(owner, pid), resource.getrlimit(FILE_LOCKS)[1]))
    except (OSError, ValueError):
        return False
    return True


def mark_supervisor(owner: str) -> None:
    """Mark this process, unless it has a mark: a supervisor that a job has started is a program of that job."""
    if own_mark() < _MARKED:
        set_mark(owner, SUPERVISOR)


def mark_of(pid: int) -> int | None:
    """Return None if there is no such process, or it is hidden from this user; and a number that is no mark if it has none."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            found = _SHOWN.search(file.read())
    except OSError:
        return None
    return int(found[1]) if found else resource.RLIM_INFINITY


def own_mark() -> int:
    return resource.getrlimit(FILE_LOCKS)[0]


def pid_in(mark: int | None, owner: str) -> int | None:
    """Return the pid that was given with this mark; None if it is no mark of this owner."""
    if mark is None or mark >> _PID_BITS != _mark(owner, 0) >> _PID_BITS:
        return None
    return mark & ((1 << _PID_BITS) - 1)


def marked(owner: str) -> Iterator[int]:
    """Yield the other processes that workers and forkservers of this owner are, or have started, wherever they are now; none if no
    descriptor is left to look."""
    try:
        entries = os.listdir("/proc")  # noqa: PTH208
    except OSError:
        return
    for entry in entries:
        if entry.isdecimal() and int(entry) != os.getpid() and pid_in(mark_of(int(entry)), owner):
            yield int(entry)


def _mark(owner: str, pid: int) -> int:
    digest = blake2b(owner.encode(), digest_size=5).digest()
    return _MARKED | int.from_bytes(digest) << _PID_BITS | pid
