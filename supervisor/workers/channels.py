"""The channels of one worker, shared with nobody: made by the supervisor, the worker's ends sent to it by the nursery.

All are pipes: a small message costs half of what it does on a socket, and to read many at once next to nothing.
Everything is closed on exec. Whoever made descriptors 0-2 valid first never finds a channel there.
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from typing import NamedTuple

APART = 200  # the first descriptor there


class WorkerEnds(NamedTuple):
    """As sent with Fork, in this order. `life` is a reading end: nothing is ever written to it."""

    jobs: int
    outcomes: int
    permits: int
    heartbeat: int
    parent_death: int
    stack: int
    stdout: int
    stderr: int


class SupervisorEnds(NamedTuple):
    """`permits` is another opening of the worker's taking end, to take back what it has not taken. Another opening, not a
    copy: whatever a job does to the worker's, to read from this one never waits."""

    jobs: int
    outcomes: int
    permits_put: int
    permits: int
    heartbeat: int
    parent_death: int
    stack: int
    stdout: int
    stderr: int

    def close(self) -> None:
        for fd in self:
            os.close(fd)


class Opened:
    """Descriptors opened so far, closed all together if the next can't be had."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def pipe(self) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        self.fds += ends
        return ends

    def pair(self) -> tuple[int, int]:
        ours, theirs = socket.socketpair()
        ends = ours.detach(), theirs.detach()
        self.fds += ends
        return ends

    def again(self, fd: int) -> int:
        self.fds.append(opened := os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        return opened

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def open_channels() -> tuple[SupervisorEnds, WorkerEnds]:
    """Raises OSError, with nothing left open, when descriptors run out."""
    opened = Opened()
    try:
        their_jobs, jobs = opened.pipe()
        outcomes, their_outcomes = opened.pipe()
        their_permits, permits_put = opened.pipe()
        permits = opened.again(their_permits)
        heartbeat, their_heartbeat = opened.pipe()
        their_parent_death, parent_death = opened.pipe()
        stack, their_stack = opened.pipe()
        stdout, their_stdout = opened.pipe()
        stderr, their_stderr = opened.pipe()
    except OSError:
        opened.close()
        raise
    for fd in (jobs, outcomes, permits_put, heartbeat, stack, stdout, stderr, their_permits, their_heartbeat):
        os.set_blocking(fd, False)
    return (
        SupervisorEnds(jobs, outcomes, permits_put, permits, heartbeat, parent_death, stack, stdout, stderr),
        WorkerEnds(
            their_jobs,
            their_outcomes,
            their_permits,
            their_heartbeat,
            their_parent_death,
            their_stack,
            their_stdout,
            their_stderr,
        ),
    )


def close_ends(ends: WorkerEnds) -> None:
    for fd in ends:
        os.close(fd)


def set_apart(ends: WorkerEnds) -> WorkerEnds:
    """The same, where what is opened later does not land: a job that closes what is not its own, and then opens something,
    must not have a worker's heartbeats or outcomes written to it."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = APART if soft == resource.RLIM_INFINITY else min(APART, soft // 2)
    apart = WorkerEnds(*[fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least) for fd in ends])
    close_ends(ends)
    return apart
