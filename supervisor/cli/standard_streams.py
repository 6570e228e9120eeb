"""The standard streams of a command.

Text that can't be written is dropped and the error remembered: the command goes on, and its exit code still reports what it did.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from supervisor.cli.exit_codes import FATAL
from supervisor.text.output import wait_for_room

STDIN, STDOUT, STDERR = 0, 1, 2
MAX_DROPPED_WRITES = 1000  # so that a command that prints without end still ends


class OutputLost(Exception):
    """Standard output can't be written, and too many writes were dropped."""


class _Descriptor(io.FileIO):
    """A file that drops every write after one has failed with `error`. Raises OutputLost once, at drop number `max_dropped`."""

    def __init__(self, fd: int, max_dropped: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.error: OSError | None = None
        self._drops_left = max_dropped

    def write(self, data: Any) -> int:
        while self.error is None:
            try:
                return os.write(self.fileno(), data)
            except BlockingIOError:
                wait_for_room(self.fileno())
            except OSError as error:
                self.error = error
        self._drops_left -= 1
        if self._drops_left == 0:
            raise OutputLost(str(self.error))
        return len(data)


class Stream(io.TextIOWrapper):
    """Standard output or error with the settings of `like`. A character that the encoding lacks is escaped."""

    def __init__(self, fd: int, like: Any, max_dropped: int = -1) -> None:
        self._descriptor = _Descriptor(fd, max_dropped)
        super().__init__(
            io.BufferedWriter(self._descriptor),
            encoding=getattr(like, "encoding", None) or "utf-8",
            errors="backslashreplace",
            line_buffering=getattr(like, "line_buffering", True),
            write_through=getattr(like, "write_through", False),
        )

    @property
    def error(self) -> OSError | None:
        """The error of the write that failed, if one did."""
        return self._descriptor.error


def install_streams() -> None:
    """Open /dev/null for each closed descriptor from 0 to 2, and set `sys.stdout` and `sys.stderr`.

    Call it before anything else is opened: a database or a pipe that gets descriptor 1 would receive the output.
    """
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= STDERR:
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
    if sys.stdin is None:  # its descriptor was closed when Python started
        sys.stdin = open(STDIN, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stdout = Stream(STDOUT, sys.stdout, MAX_DROPPED_WRITES)
    sys.stderr = Stream(STDERR, sys.stderr)


def code_after_output(code: int | None) -> int:
    """Return the exit code of a command. `code` is the one that it returned, or None if it has only printed.

    If standard output could not be written, report it on standard error, and return a failure in place of None. It is no error
    if the reader has closed the pipe.
    """
    stream = sys.stdout
    error = stream.error if isinstance(stream, Stream) else None
    if error is None or isinstance(error, BrokenPipeError):
        return code or 0
    print(f"Error: standard output: {error.strerror}", file=sys.stderr)
    return FATAL if code is None else code
