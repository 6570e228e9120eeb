"""Places at which supervisors run: whoever dies there is followed by another. And what their logs say."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import psutil

from tests.system.chaos_grounds import Stand
from tests.system.command import Command, Running

AWAY_FOR = 0.3  # seconds until the next supervisor is started


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
    """What a run has logged so far; each `read` goes on where the last one ended."""

    def __init__(self, run: Running, number: int, skew: float) -> None:
        self._path, self._number, self._offset = run._log, number, 0
        self._monotonic = time.time() - time.monotonic() + skew
        self.lines: list[Line] = []

    def read(self) -> list[Line]:
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


class Seat:
    """`run` is the supervisor that sits here now."""

    def __init__(self, command: Command, stand: Stand) -> None:
        self._command, self._stand = command, stand
        self.runs: list[tuple[int, Running, Log]] = []
        self._empty_since: float | None = None
        self.sit()

    def sit(self) -> None:
        run = self._command.run(under=self._stand.under, config=self._stand.config)
        self.number = len(self._command.runs)
        self.run, self.log = run, Log(run, self.number, self._stand.skew)
        self.runs.append((self.number, run, self.log))
        self._empty_since = None

    def tend(self) -> bool:
        """Whether a supervisor sits here; if none has for a while, the next one will."""
        if self.run.code is None:
            return True
        self._empty_since = self._empty_since or time.monotonic()
        if time.monotonic() - self._empty_since >= AWAY_FOR:
            self.sit()
        return self.run.code is None

    @property
    def serves(self) -> bool:
        """It has said so, and signals that it understands by now do not end it."""
        return self.run.code is None and any("supervisor started" in line.message for line in self.log.read())

    def process(self) -> psutil.Process | None:
        return _process(self.run.pid) if self.run.code is None else None

    def forkserver(self) -> psutil.Process | None:
        return next(iter(self._children(r"forkserver started \(pid (\d+)\)")), None)

    def workers(self) -> list[psutil.Process]:
        return self._children(r"worker \d+ \(pid (\d+)\) started")

    def _children(self, pattern: str) -> list[psutil.Process]:
        """The living, newest first."""
        found = [match[1] for line in self.log.read() if (match := re.match(pattern, line.message))]
        processes = [_process(int(pid)) for pid in dict.fromkeys(reversed(found))]
        return [process for process in processes if process is not None and self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return self.run.pid in [parent.pid for parent in process.parents()]
        except psutil.Error:
            return False


def _process(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None
