"""The channels of one worker, shared with nobody: made by the supervisor, the worker's ends sent to it by the nursery.

Everything is closed on exec. Whoever made descriptors 0-2 valid first never finds a channel there.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple


class WorkerEnds(NamedTuple):
    """As sent with Fork, in this order. `life` is a reading end: nothing is ever written to it."""

    jobs: int
    permits: int
    beat: int
    life: int
    stack: int
    stdout: int
    stderr: int


class SupervisorEnds:
    """`permits` is a second hold on the worker's taking end, to take back what it has not taken."""

    __slots__ = ("beat", "jobs", "life", "permits", "permits_put", "stack", "stderr", "stdout")

    def __init__(self, opened: list[int], jobs: socket.socket, put: socket.socket, take: socket.socket) -> None:
        self.jobs = jobs
        self.permits_put = put
        self.permits = take
        self.beat, self.life, self.stack, self.stdout, self.stderr = opened

    def close(self) -> None:
        for end in (self.jobs, self.permits_put, self.permits):
            end.close()
        for fd in (self.beat, self.life, self.stack, self.stdout, self.stderr):
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

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def open_channels() -> tuple[SupervisorEnds, WorkerEnds]:
    """Raises OSError, with nothing left open, when descriptors run out."""
    opened = Opened()
    try:
        jobs, their_jobs = opened.pair()
        put, take = opened.pair()
        their_permits = os.dup(take)
        opened.fds.append(their_permits)
        beat, their_beat = opened.pipe()
        their_life, life = opened.pipe()
        stack, their_stack = opened.pipe()
        stdout, their_stdout = opened.pipe()
        stderr, their_stderr = opened.pipe()
    except OSError:
        opened.close()
        raise
    for fd in (jobs, beat, stack, stdout, stderr, their_beat):
        os.set_blocking(fd, False)
    ours = SupervisorEnds(
        [beat, life, stack, stdout, stderr],
        socket.socket(fileno=jobs),
        socket.socket(fileno=put),
        socket.socket(fileno=take),
    )
    theirs = WorkerEnds(their_jobs, their_permits, their_beat, their_life, their_stack, their_stdout, their_stderr)
    return ours, theirs


def close_ends(ends: WorkerEnds) -> None:
    for fd in ends:
        os.close(fd)
