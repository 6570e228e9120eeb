"""The channels of one worker. The supervisor opens them, and sends the worker's ends to the forkserver with the order to fork it.

All are pipes: a small message costs half of what it costs on a socket, and many of them can be read at once. All are closed on
exec. None gets a number from 0 to 2 if the process has opened these descriptors before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from _socket import socketpair  # of C: that of `socket` makes objects of a class that a plugin may have replaced
from collections.abc import Iterable
from os import close
from typing import NamedTuple

CHUNK = 1 << 16  # bytes of one read
FIRST_DESCRIPTOR = 200
"""The channels have numbers from this one on, and the files that a job opens lower ones."""


class WorkerEnds(NamedTuple):
    """The ends that are sent with Fork, in this order. `parent_death` is a read end, and nothing is ever written to it."""

    jobs: int
    outcomes: int
    permits: int
    heartbeat: int
    parent_death: int
    stack: int
    stdout: int
    stderr: int


class SupervisorEnds(NamedTuple):
    """`permits` is the worker's read end opened again, to reclaim the permits that the worker has not taken. It is no duplicate:
    a read from it never waits, even if a job makes the worker's own descriptor blocking."""

    jobs: int
    outcomes: int
    permits_put: int
    permits: int
    heartbeat: int
    parent_death: int
    stack: int
    stdout: int
    stderr: int


class Opened:
    """The descriptors opened so far, to be closed together if the next one can't be opened."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def pipe(self) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        self.fds += ends
        return ends

    def pair(self) -> tuple[int, int]:
        ours, theirs = socketpair()
        ends = ours.detach(), theirs.detach()
        self.fds += ends
        return ends

    def reopen(self, fd: int) -> int:
        self.fds.append(opened := os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        return opened

    def close(self) -> None:
        close_all(self.fds)


def open_channels(end: float = float("inf")) -> tuple[SupervisorEnds, WorkerEnds]:
    """Open all channels of a worker. Raises OSError, with nothing left open, when no descriptors below `end` are left."""
    opened = Opened()
    try:
        their_jobs, jobs = opened.pipe()
        outcomes, their_outcomes = opened.pipe()
        their_permits, permits_put = opened.pipe()
        permits = opened.reopen(their_permits)
        heartbeat, their_heartbeat = opened.pipe()
        their_parent_death, parent_death = opened.pipe()
        stack, their_stack = opened.pipe()
        stdout, their_stdout = opened.pipe()
        stderr, their_stderr = opened.pipe()
        if max(opened.fds) >= end:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    except OSError:
        opened.close()
        raise
    for fd in (jobs, outcomes, permits_put, heartbeat, stack, stdout, stderr, their_permits, their_heartbeat):
        os.set_blocking(fd, False)
    return (
        SupervisorEnds(jobs, outcomes, permits_put, permits, heartbeat, parent_death, stack, stdout, stderr),
        WorkerEnds(
            their_jobs, their_outcomes, their_permits, their_heartbeat, their_parent_death, their_stack, their_stdout,
            their_stderr,
        ),
    )  # fmt: skip


def close_all(fds: Iterable[int]) -> None:
    """By a name imported before the plugins: gevent replaces it by a function that waits for a loop which may never run."""
    for fd in fds:
        close(fd)


def move_out_of_reach(ends: WorkerEnds) -> WorkerEnds:
    """Duplicate the ends to numbers that files opened later don't get, and close the originals. Otherwise, if a job closed
    descriptors that are not its own and then opened a file, the worker's heartbeats or outcomes would be written to the file."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = FIRST_DESCRIPTOR if soft == resource.RLIM_INFINITY else min(FIRST_DESCRIPTOR, soft // 2)
    duplicates = WorkerEnds(*[fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first) for fd in ends])
    close_all(ends)
    return duplicates
