"""Hosts on which supervisors run one after the other, and what these log."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

import psutil

from tests.system.chaos_environments import HostOptions
from tests.system.command import Command, Running

RESTART_DELAY = 0.3  # seconds from the exit of a supervisor to the start of the next


@dataclass(frozen=True)
class Line:
    """A line of the log of run number `run` (from 1), at monotonic seconds."""

    at: float
    run: int
    message: str
    fields: dict[str, Any]

    @cached_property
    def job(self) -> int | None:
        return self.fields.get("job")


class Log:
    """The log of a run; each `read` goes on where the last one ended."""

    def __init__(self, run: Running, number: int, skew: float) -> None:
        self._path, self._number, self._offset = run._log, number, 0
        self._monotonic = time.time() - time.monotonic() + skew
        self.lines: list[Line] = []

    def read(self) -> list[Line]:
        """Return all lines so far."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.lines += [self._line(text) for text in whole.splitlines()]
        return self.lines

    def _line(self, text: bytes) -> Line:
        try:
            fields = json.loads(text)
        except ValueError:
            return Line(time.monotonic(), self._number, text.decode(errors="replace"), {"level": "none"})
        at = datetime.fromisoformat(fields.pop("at")).timestamp() - self._monotonic
        return Line(at, self._number, fields.pop("message"), fields)


class Run(NamedTuple):
    """One supervisor, from its start to its exit."""

    number: int
    process: Running
    log: Log


class Host:
    """`runs` has all supervisors that ran here, the newest last."""

    def __init__(self, command: Command, options: HostOptions) -> None:
        self._command, self._options = command, options
        self.runs: list[Run] = []
        self._exited_at: float | None = None
        self.start()

    @property
    def run(self) -> Run:
        return self.runs[-1]

    def start(self) -> None:
        process = self._command.run(under=self._options.under, config=self._options.config)
        number = len(self._command.runs)
        self.runs.append(Run(number, process, Log(process, number, self._options.skew)))
        self._exited_at = None

    def is_running(self) -> bool:
        """Return whether a supervisor runs here; start the next one if none has for a while."""
        if self.run.process.code is None:
            return True
        self._exited_at = self._exited_at or time.monotonic()
        if time.monotonic() - self._exited_at >= RESTART_DELAY:
            self.start()
        return self.run.process.code is None

    @property
    def serves(self) -> bool:
        """Whether the supervisor has logged that it serves: from then on it handles every signal."""
        run = self.run
        return run.process.code is None and any("supervisor started" in line.message for line in run.log.read())

    def supervisor(self) -> psutil.Process | None:
        process = self.run.process
        return _process(process.pid) if process.code is None else None

    def forkserver(self) -> psutil.Process | None:
        return next(iter(self._descendants(r"forkserver started \(pid (\d+)\)")), None)

    def workers(self) -> list[psutil.Process]:
        return self._descendants(r"worker \d+ \(pid (\d+)\) started")

    def _descendants(self, pattern: str) -> list[psutil.Process]:
        """Return the processes that the log names and that still run, newest first."""
        found = [match[1] for line in self.run.log.read() if (match := re.match(pattern, line.message))]
        processes = [_process(int(pid)) for pid in dict.fromkeys(reversed(found))]
        return [process for process in processes if process is not None and self._is_descendant(process)]

    def _is_descendant(self, process: psutil.Process) -> bool:
        try:
            return self.run.process.pid in [parent.pid for parent in process.parents()]
        except psutil.Error:
            return False


def _process(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None
