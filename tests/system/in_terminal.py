"""A command of `supervisor` in a pseudo terminal, with its keyboard and all that it has written."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import Callable
from contextlib import suppress

from tests.system.command import Command, wait_for

SEQUENCES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|P.*?\x1b\\|[@-Z=>])", re.S)


class InTerminal:
    """The command in the foreground of a terminal of `columns` and `lines`. Use it as a context manager."""

    def __init__(self, command: Command, *arguments: str, columns: int = 80, lines: int = 24, **env: str) -> None:
        self.written = b""
        self.code: int | None = None
        words = command.arguments(*arguments)
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(command.folder)
                size = struct.pack("HHHH", lines, columns, 0, 0)
                fcntl.ioctl(1, termios.TIOCSWINSZ, size)
                inherited = {name: it for name, it in command.env.items() if name not in ("COLUMNS", "LINES")}
                os.execve(words[0], words, {**inherited, "TERM": "xterm-256color", **env})
            finally:
                os._exit(127)
        os.set_blocking(self._master, False)
        self.modes_before = termios.tcgetattr(self._master)

    def __enter__(self) -> InTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._master)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def read(self) -> bytes:
        """Return all that was written so far."""
        with suppress(OSError):
            while data := os.read(self._master, 1 << 16):
                self.written += data
        return self.written

    @property
    def text(self) -> str:
        """What was written, without the sequences that steer the terminal."""
        return SEQUENCES.sub(b"", self.read()).decode(errors="replace")

    def shown(self, text: str, since: int = 0) -> None:
        """Wait until the text was written, behind the first `since` characters."""

        def found() -> None:
            assert text in self.text[since:], f"{text!r} is not in:\n{self.text[since:]}"

        wait_for(found)

    def until(self, fact: Callable[[], object]) -> None:
        """Wait for a fact while the terminal is read."""

        def found() -> None:
            self.read()
            assert fact(), self.text[-3000:]

        wait_for(found)

    def wait(self) -> int:
        """Return the exit code, minus the number of the signal that has killed the command."""

        def exited() -> int:
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG) if self.code is None else (0, 0)
            self.code = os.waitstatus_to_exitcode(status) if pid else self.code
            assert self.code is not None, f"still running:\n{self.text[-3000:]}"
            return self.code

        code = wait_for(exited)
        self.read()
        return code

    @property
    def modes(self) -> list[object]:
        return termios.tcgetattr(self._master)
