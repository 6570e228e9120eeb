"""The standard streams of nursery and worker: always there, always on descriptors 0-2, each job's output kept apart.

Both streams are pipes that the supervisor drains. After a job that wrote, a *mark* goes into the stream: the worker's token
and the job's id. All that stands before it and after the mark before belongs to that job.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
import termios
from typing import Any

_NONE = bytes(4)


def hold_standard_fds() -> None:
    """Make 0-2 valid, so that no descriptor opened later lands there."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


class Stream(io.TextIOWrapper):
    """sys.stdout or sys.stderr; a line goes out as it ends. `wrote` says that something was written since it was cleared."""

    def __init__(self, fd: int) -> None:
        self.wrote = False
        raw = io.FileIO(fd, "w", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def write(self, text: str) -> int:
        self.wrote = True
        return super().write(text)


def install_streams() -> None:
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = Stream(1)
    sys.stderr = Stream(2)


class Output:
    """One of the worker's two output streams: fd 1 or 2, and `pipe`, a second hold on what must be behind it."""

    __slots__ = ("_buffered", "_fd", "_name", "_pipe", "_stream", "_token")

    def __init__(self, name: str, fd: int, pipe: int, token: bytes) -> None:
        self._name = name
        self._fd = fd
        self._pipe = pipe
        self._token = token
        self._buffered = bytearray(4)
        self._point()
        current = getattr(sys, name)
        self._stream: Any = current if isinstance(current, Stream) and not current.closed else self._renewed()

    def settle(self, job_id: int) -> None:
        """After a job: flush what it wrote, mark it as this job's, and put the stream back if the job has moved it."""
        stream = self._stream
        if getattr(sys, self._name) is not stream or stream.closed:
            self._flush(getattr(sys, self._name))
            stream = self._stream = self._renewed(wrote=True)
        if stream.wrote:
            self._flush(stream)
        try:
            fcntl.ioctl(self._fd, termios.FIONREAD, self._buffered)
        except OSError:
            self._point()
            fcntl.ioctl(self._fd, termios.FIONREAD, self._buffered)
        if stream.wrote or self._buffered != _NONE:
            stream.wrote = False
            self._write(b"%b %d\n" % (self._token, job_id))

    @property
    def wrote(self) -> bool:
        return bool(self._stream.wrote)

    def _point(self) -> None:
        os.dup2(self._pipe, self._fd)

    def _renewed(self, *, wrote: bool = False) -> Stream:
        stream = Stream(self._fd)
        stream.wrote = wrote
        setattr(sys, self._name, stream)
        return stream

    def _flush(self, stream: Any) -> None:
        try:
            stream.flush()
        except Exception:  # whatever a job has put there
            pass

    def _write(self, mark: bytes) -> None:
        try:
            os.write(self._pipe, mark)
        except BlockingIOError:  # a program of the job has made the pipe non-blocking, and it is full
            pass
