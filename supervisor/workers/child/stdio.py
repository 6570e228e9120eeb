"""The standard streams of forkservers and workers. They are always valid, on descriptors 0-2, and separate the output of jobs.

stdout and stderr are pipes that the supervisor drains. After a job that wrote, the worker writes a *mark* to the stream: the
worker's token and the job's id. The output between two marks belongs to the job of the second one.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NOTHING_UNREAD = bytes(4)


def hold_standard_fds() -> None:
    """Make 0-2 valid, so that no descriptor opened later gets these numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


class Stream(io.TextIOWrapper):
    """sys.stdout or sys.stderr, flushed at the end of each line. `wrote` is set by every write. `around_write` writes text, if it is
    set, with the function that it gets."""

    def __init__(self, fd: int) -> None:
        self.wrote = False
        self.around_write: Callable[[Stream, str, Callable[[str], int]], int] | None = None
        buffer = _Buffer(self, io.FileIO(fd, "w", closefd=False))
        super().__init__(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def write(self, text: str) -> int:
        self.wrote = True
        if self.around_write is not None:
            return self.around_write(self, text, super().write)
        return super().write(text)


class _Buffer(io.BufferedWriter):
    """A buffer that sets the stream's `wrote`, too: data that a job writes to the buffer itself stays there until a flush."""

    def __init__(self, stream: Stream, raw: io.FileIO) -> None:
        super().__init__(raw)
        self._stream = stream

    def write(self, data: ReadableBuffer) -> int:
        self._stream.wrote = True
        return super().write(data)


_streams: dict[str, Stream] = {}
"""The streams of this process. They are replaced only if they were closed, since log handlers made at import hold them."""


def install_streams() -> None:
    sys.stdin = _open_input()
    for name, fd in (("stdout", 1), ("stderr", 2)):
        install_stream(name, fd)


def install_stream(name: str, fd: int) -> Stream:
    """Make the stream of this process sys.stdout or sys.stderr again, and return it."""
    stream = _streams.get(name)
    setattr(sys, name, stream)  # a replaced one may close the buffer of ours when it is deleted
    if stream is None or _is_closed(stream):
        stream = _streams[name] = Stream(fd)
        setattr(sys, name, stream)
    return stream


def note_written() -> None:
    """Have a mark written after the job, which has written a log record."""
    _streams["stderr"].wrote = True


def flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except BaseException:  # a plugin or a job may have put any object there
        pass


def _open_input() -> io.TextIOWrapper:
    return open(0, encoding="utf-8", closefd=False)


class Input:
    """The worker's standard input, which is empty."""

    __slots__ = ("_null", "stream")

    def __init__(self) -> None:
        self._null = os.fstat(0)
        self.stream = sys.stdin = _open_input()

    def restore(self) -> None:
        stream = self.stream
        try:
            kept = _is_same(os.fstat(0), self._null)
        except OSError:
            kept = False
        if not kept:
            os.dup2(null := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
            if null:
                os.close(null)
        if not kept or getattr(sys, "stdin", None) is not stream or _is_closed(stream):
            self.stream = sys.stdin = _open_input()


class Output:
    """One of the worker's two output streams: descriptor 1 or 2, and `pipe`, a second descriptor of the pipe that belongs there."""

    __slots__ = ("_fd", "_name", "_status", "_unread", "_unread_at_mark", "pipe", "stream")

    def __init__(self, name: str, fd: int, pipe: int) -> None:
        self.pipe = pipe
        self._name = name
        self._fd = fd
        self._status = os.fstat(pipe)
        self._unread = bytearray(4)  # as FIONREAD gives it: the bytes that the supervisor has not read
        self._unread_at_mark = bytes(4)
        self._restore_descriptor()
        self.stream = install_stream(name, fd)

    def restore(self) -> bool:
        """Flush the output of a job and restore the stream. Return whether something was written since the last mark."""
        self._make_blocking()
        stream = self.stream
        current = getattr(sys, self._name, None)
        if current is not stream or _is_closed(stream):
            _flush(current)
            del current
            self._restore_descriptor()  # the job may have closed the descriptor too
            stream = self.stream = install_stream(self._name, self._fd)
            stream.wrote = True
        if stream.wrote:
            _flush(stream)
        try:
            if not _is_same(os.fstat(self._fd), self._status):
                self._restore_descriptor()
            fcntl.ioctl(self._fd, termios.FIONREAD, self._unread)
        except OSError:
            self._restore_descriptor()
            fcntl.ioctl(self._fd, termios.FIONREAD, self._unread)
        return stream.wrote or (self._unread != self._unread_at_mark and self._unread != _NOTHING_UNREAD)

    def marked(self) -> None:
        """Note that a mark was written into the pipe."""
        self.stream.wrote = False
        fcntl.ioctl(self._fd, termios.FIONREAD, self._unread)
        self._unread_at_mark = bytes(self._unread)

    def _make_blocking(self) -> None:
        """Make the pipe blocking again: a job or a program may have changed this for all processes that write into it."""
        if not os.get_blocking(self.pipe):
            os.set_blocking(self.pipe, True)

    def _restore_descriptor(self) -> None:
        os.dup2(self.pipe, self._fd)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return one.st_ino == other.st_ino and one.st_dev == other.st_dev


def _is_closed(stream: Any) -> bool:
    try:
        return bool(stream.closed)
    except ValueError:  # its buffer was detached
        return True
