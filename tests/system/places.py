"""Places that jobs take while they run, each the first that is free. So a job that finds places taken knows which others run.

A place is one byte of a file, which a process locks. The kernel frees it when the process ends, before it closes the process's sockets and
the files that it shares with others. So a place is free before anybody can find that the owner of a job is gone. Each process has one
place at a time.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PLACES, TAKEN = "places", "places.log"
_LOCK = "hhqqi"
"""The type, whence, start, length and process of a lock (`struct flock`)."""


class Taken(NamedTuple):
    """A job that took a place in a process, at monotonic seconds, and the processes that had the places `before` it then.

    All of them ran at one moment: each had found the places before its own taken too, and only the last can be `pid`.
    """

    job: int
    pid: int
    at: float
    before: tuple[int, ...]

    @property
    def running(self) -> int:
        return len(self.before) + 1


@contextmanager
def place(job: int, folder: str) -> Iterator[None]:
    """Take a place in `folder` until the end of the block or of this process, and note who has those before it."""
    fd = os.open(f"{folder}/{PLACES}", os.O_RDWR | os.O_CREAT)
    try:
        before: list[int] = []
        while holder := _take(fd, len(before)):
            before.append(holder)
        line = " ".join(map(str, (job, os.getpid(), time.monotonic(), *before)))
        out = os.open(f"{folder}/{TAKEN}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(out, f"{line}\n".encode())
        os.close(out)
        yield
    finally:
        os.close(fd)  # frees the place


def _take(fd: int, number: int) -> int:
    """Lock a place; return the process that has it, or 0 if it is this one from now on."""
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            asked = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
            kind, *_, holder = struct.unpack(_LOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                return int(holder)
        else:
            return 0


def taken_in(folder: Path) -> list[Taken]:
    log = folder / TAKEN
    lines = (line.split() for line in log.read_text().splitlines()) if log.exists() else ()
    return [Taken(int(job), int(pid), float(at), tuple(map(int, before))) for job, pid, at, *before in lines]
