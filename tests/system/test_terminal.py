"""A supervisor in a terminal: it ends when the terminal is closed, and its jobs have no terminal."""

from __future__ import annotations

import os
import pty
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.system.command import Command, wait_for

JOBS = {
    "jobs.py": """
        import os, subprocess, time
        from supervisor import handler

        def use_terminal():
            found = []
            for flags in (os.O_RDONLY, os.O_RDWR | os.O_NOCTTY):
                try:
                    fd = os.open("/dev/tty", flags)
                    os.write(fd, b"on the screen")
                    found.append(os.read(fd, 1).decode())
                except OSError as error:
                    found.append(error.strerror)
            return found

        of_import = use_terminal()

        @handler
        def terminal(job):
            program = subprocess.run(["sh", "-c", "read line < /dev/tty"], capture_output=True)
            return [*of_import, *use_terminal(), program.returncode > 0, os.getpgid(0) == os.getpid()]

        @handler
        def gated(job):
            open("begun", "w").close()
            while not os.path.exists("gate"):
                time.sleep(0.01)
    """
}


class InTerminal:
    """A supervisor in the foreground of a terminal of its own. Its log goes to a file."""

    def __init__(self, command: Command, *arguments: str, nohup: bool = False) -> None:
        self._log = command.folder / "log"
        self._code: int | None = None
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(command.folder)
                os.dup2(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
                signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
                os.execve(command.arguments("run")[0], command.arguments("run", *arguments), command.env)
            finally:
                os._exit(127)
        os.set_blocking(self._master, False)

    def logged(self, text: str) -> None:
        def found() -> None:
            log = self._log.read_text() if self._log.exists() else ""
            assert text in log, f"{text!r} is not in the log:\n{log}"

        wait_for(found)

    def shown(self) -> bytes:
        with suppress(OSError):
            return os.read(self._master, 1 << 16)
        return b""

    def close(self) -> None:
        os.close(self._master)

    def wait(self) -> int:
        def exited() -> int:
            pid, status = (0, 0) if self._code is not None else os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else self._code
            assert self._code is not None, f"still running; its log:\n{self._log.read_text()}"
            return self._code

        return wait_for(exited)

    def end(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGTERM)
            os.kill(self.pid, signal.SIGINT)
            self.wait()


@pytest.fixture
def running() -> Iterator[list[InTerminal]]:
    found: list[InTerminal] = []
    yield found
    for each in found:
        each.end()


@pytest.mark.parametrize("arguments", [(), ("--drain",)])
def test_a_closed_terminal_leads_to_a_drain(
    command: Command, running: list[InTerminal], arguments: tuple[str, ...]
) -> None:
    command.write(config="workers: {count: 1}\n", plugins=JOBS)
    id = command.enqueue("gated")
    running.append(InTerminal(command, *arguments))
    wait_for((command.folder / "begun").exists)
    running[0].close()
    running[0].logged("SIGHUP received: its terminal was closed; running jobs have shutdown.grace to end")
    running[0].logged("supervisor stopping: its terminal was closed")
    (command.folder / "gate").touch()
    assert running[0].wait() == 0
    assert command.job(id)["state"] == "succeeded"


def test_hup_of_an_operator_reloads_while_the_terminal_is_there(command: Command, running: list[InTerminal]) -> None:
    command.write(config="workers: {count: 1}\n", plugins=JOBS)
    running.append(InTerminal(command))
    running[0].logged("supervisor started")
    os.kill(running[0].pid, signal.SIGHUP)
    running[0].logged("SIGHUP received: reload")
    running[0].logged("config reloaded")


def test_under_nohup_a_closed_terminal_ends_and_reloads_nothing(command: Command, running: list[InTerminal]) -> None:
    command.write(config="workers: {count: 1}\n", plugins=JOBS)
    running.append(InTerminal(command, nohup=True))
    running[0].logged("supervisor started")
    running[0].close()
    running[0].logged("SIGHUP received: ignored: its terminal was closed, and it was started with nohup")
    id = command.enqueue("terminal")
    command.until(id, "succeeded")


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_jobs_and_imports_have_no_terminal(command: Command, running: list[InTerminal], start: str) -> None:
    command.write(config=f"workers: {{count: 1, start: {start}, timeout: 10s}}\n", plugins=JOBS)
    id = command.enqueue("terminal")
    running.append(InTerminal(command))
    missing = os.strerror(6)
    assert command.until(id, "succeeded")["result"] == [missing] * 4 + [True, True]
    assert running[0].shown() == b""
    assert Path(f"/proc/{running[0].pid}/stat").read_text().rpartition(") ")[2].split()[4] != "0"
