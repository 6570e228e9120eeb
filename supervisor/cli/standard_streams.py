"""The standard streams of a command. Text that can't be written is lost, and remembered; what the command does goes on, and
its exit code still tells what became of that."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from supervisor.telemetry.log_handler import STDERR, write_some

STDIN, STDOUT = 0, 1
LOSSES_BORNE = 1000  # writes, so that a command that prints without end ends all the same


class OutputLost(Exception):
    """Nobody has had this command's output for long."""


class _Descriptor(io.FileIO):
    """Drops what it is given once a write has failed with `error`; after `borne` such drops it raises OutputLost, once."""

    def __init__(self, fd: int, borne: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.error: OSError | None = None
        self._borne = borne

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                return write_some(self.fileno(), data)
            except OSError as error:
                self.error = error
        self._borne -= 1
        if self._borne == 0:
            raise OutputLost(str(self.error))
        return len(data)


class Stream(io.TextIOWrapper):
    """Standard output or error, as Python had set it up; a character that its encoding lacks is escaped."""

    def __init__(self, fd: int, like: Any, borne: int = -1) -> None:
        self._descriptor = _Descriptor(fd, borne)
        super().__init__(
            io.BufferedWriter(self._descriptor),
            encoding=getattr(like, "encoding", None) or "utf-8",
            errors="backslashreplace",
            line_buffering=getattr(like, "line_buffering", True),
            write_through=getattr(like, "write_through", False),
        )

    @property
    def error(self) -> OSError | None:
        """Why text was lost, if it was."""
        return self._descriptor.error


def install_streams() -> None:
    """Put /dev/null where descriptors 0 to 2 are closed, so that no database or pipe is opened there and gets our output;
    and our streams on them.

    To be called before anything else is opened.
    """
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= STDERR:
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
    if sys.stdin is None:  # Python found no descriptor there
        sys.stdin = open(STDIN, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stdout = Stream(STDOUT, sys.stdout, LOSSES_BORNE)
    sys.stderr = Stream(STDERR, sys.stderr)


def output_error() -> OSError | None:
    """Why standard output could not be written, if so; a reader that has seen enough is no such reason."""
    stream = sys.stdout
    error = stream.error if isinstance(stream, Stream) else None
    return None if isinstance(error, BrokenPipeError) else error
