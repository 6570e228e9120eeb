"""The standard streams of nursery and worker: always there, always on descriptors 0-2, each job's output kept apart.

Both streams are pipes that the supervisor drains. After a job that wrote, a *mark* goes into the stream: the worker's token
and the job's id. All that stands before it and after the mark before belongs to that job.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import sys
import termios
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

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
        buffer = _Buffer(self, io.FileIO(fd, "w", closefd=False))
        super().__init__(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def write(self, text: str) -> int:
        self.wrote = True
        return super().write(text)


class _Buffer(io.BufferedWriter):
    """What is written here directly stays here until it is flushed, and has been written all the same."""

    def __init__(self, stream: Stream, raw: io.FileIO) -> None:
        super().__init__(raw)
        self._stream = stream

    def write(self, data: ReadableBuffer) -> int:
        self._stream.wrote = True
        return super().write(data)


def install_streams() -> None:
    sys.stdin = _input()
    sys.stdout = Stream(1)
    sys.stderr = Stream(2)


def flush_streams() -> None:
    """Whatever has been put there."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()


def _input() -> io.TextIOWrapper:
    return open(0, encoding="utf-8", closefd=False)


class Input:
    """The worker's standard input, from which there is nothing to read."""

    __slots__ = ("_null", "stream")

    def __init__(self) -> None:
        self._null = os.fstat(0)
        self.stream = sys.stdin = _input()

    def settle(self) -> None:
        stream = self.stream
        try:
            held = _same(os.fstat(0), self._null)
        except OSError:
            held = False
        if not held:
            os.dup2(null := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
            if null:
                os.close(null)
            self.stream = sys.stdin = _input()
            return
        if getattr(sys, "stdin", None) is not stream or _is_closed(stream):
            self.stream = sys.stdin = _input()


class Output:
    """One of the worker's two output streams: fd 1 or 2, and `pipe`, a second hold on what must be behind it."""

    __slots__ = ("_buffered", "_fd", "_name", "_pipe", "_seen", "_status", "_token", "stream")

    def __init__(self, name: str, fd: int, pipe: int, token: bytes) -> None:
        self._name = name
        self._fd = fd
        self._pipe = pipe
        self._status = os.fstat(pipe)
        self._token = token
        self._buffered = bytearray(4)  # FIONREAD: what the supervisor has not read
        self._seen = bytes(4)  # the same as it was after the last mark
        self._point()
        current = getattr(sys, name)
        self.stream: Any = current if isinstance(current, Stream) and not current.closed else self._renewed()

    def settle(self, job_id: int, *, mark: bool) -> None:
        """After a job: flush what it wrote, mark it as this job's, and put the stream back if the job has moved it.

        With `mark` in any case: the supervisor may have read already what the job, or a program of it, wrote.
        """
        self.make_blocking()
        stream = self.stream
        current = getattr(sys, self._name, None)
        if current is not stream or _is_closed(stream):
            self._flush(current)
            self._point()  # the job may have closed the descriptor too
            stream = self.stream = self._renewed(wrote=True)
        if stream.wrote:
            self._flush(stream)
        try:
            if not _same(os.fstat(self._fd), self._status):
                self._point()
            fcntl.ioctl(self._fd, termios.FIONREAD, self._buffered)
        except OSError:
            self._point()
            fcntl.ioctl(self._fd, termios.FIONREAD, self._buffered)
        if mark or stream.wrote or (self._buffered != self._seen and self._buffered != _NONE):
            stream.wrote = False
            self._write(b"%b %d\n" % (self._token, job_id))
            fcntl.ioctl(self._fd, termios.FIONREAD, self._buffered)
            self._seen = bytes(self._buffered)

    def make_blocking(self) -> None:
        """A job or a program has perhaps made it otherwise for all that write into it."""
        if not os.get_blocking(self._pipe):
            os.set_blocking(self._pipe, True)

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
        except BaseException:  # whatever a job has put there
            pass

    def _write(self, mark: bytes) -> None:
        try:
            os.write(self._pipe, mark)
        except BlockingIOError:  # a program of the job has made the pipe non-blocking, and it is full
            pass


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return one.st_ino == other.st_ino and one.st_dev == other.st_dev


def _is_closed(stream: Any) -> bool:
    try:
        return bool(stream.closed)
    except ValueError:  # detached from what was below it
        return True
