"""A supervisor in a forked child, for `supervisor bench`. It reports through a pipe and ends with its parent."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from supervisor import telemetry
from supervisor.config.settings import Settings
from supervisor.events import Event, JobsClaimed, JobsSettled, SupervisorStarted
from supervisor.jobs import JobState
from supervisor.runtime.supervisor import Supervisor
from supervisor.text.redaction import Mask
from supervisor.workers.system import linux

CHUNK = 1 << 16

Wait = Callable[[Sequence[int], float | None], list[int]]


class SupervisorEnded(Exception):
    """The supervisor ended before its report, or there was none in time. Its log has the reason."""


class ForkedSupervisor:
    """A supervisor in a child. `report_fd` becomes readable when a report comes, or the supervisor has ended."""

    def __init__(self, pid: int, report_fd: int, wait: Wait) -> None:
        self._pid = pid
        self.report_fd = report_fd
        self._wait = wait
        self._text = b""

    def receive(self, seconds: float | None = None) -> dict[str, Any]:
        """Return the next report. Raises SupervisorEnded, also if there is none within `seconds`."""
        while b"\n" not in self._text:
            if not self._wait([self.report_fd], seconds):
                raise SupervisorEnded(f"no report of its supervisor within {seconds:g}s")
            data = os.read(self.report_fd, CHUNK)
            if not data:
                raise SupervisorEnded("its supervisor ended too early")
            self._text += data
        line, _, self._text = self._text.partition(b"\n")
        report: dict[str, Any] = json.loads(line)
        return report

    def stop(self) -> None:
        """Stop the supervisor, and wait for its end. Call it only after a report: before, its signal handlers may be missing."""
        os.kill(self._pid, signal.SIGTERM)
        while self._wait([self.report_fd], None) and os.read(self.report_fd, CHUNK):
            pass


@contextmanager
def forked_supervisor(settings: Settings, wait: Wait, *, drain: bool = False) -> Iterator[ForkedSupervisor]:
    """Fork a supervisor, and kill it with all its processes at the end if it still runs.

    It reports `{"started": true}` when it serves and, with `drain`, at its end how many jobs `succeeded` and the `seconds` from
    the first claim to the last settle.
    """
    report_fd, write_fd = os.pipe()
    parent_death, alive = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(report_fd)
        os.close(alive)
        _become_supervisor(settings, drain, write_fd, parent_death)
    os.close(write_fd)
    os.close(parent_death)
    try:
        yield ForkedSupervisor(pid, report_fd, wait)
    finally:
        os.close(alive)
        os.waitpid(pid, 0)
        os.close(report_fd)


def _become_supervisor(settings: Settings, drain: bool, write_fd: int, parent_death: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        linux.arm_parent_death(parent_death)
        telemetry.configure(settings.log.level, settings.log.format, mask=Mask(settings.secrets))
        reporter = _Reporter(write_fd)
        code = Supervisor(settings, drain=drain, subscribers=[telemetry.LogSubscriber(), reporter]).run()
        if drain:
            reporter.report_drained()
    except Exception:
        traceback.print_exc()
    finally:
        telemetry.stop()
        sys.stderr.flush()
        os._exit(code)


class _Reporter:
    """A subscriber that writes the reports, and measures from the first claim to the last settle."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._first_claim: float | None = None
        self._last_settle = 0.0
        self._succeeded = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobsSettled):
            self._last_settle = time.monotonic()
            self._succeeded += sum(outcome.state is JobState.SUCCEEDED for outcome in event.outcomes)
        elif isinstance(event, JobsClaimed):
            self._first_claim = self._first_claim or time.monotonic()
        elif isinstance(event, SupervisorStarted):
            self._write({"started": True})

    def report_drained(self) -> None:
        seconds = self._last_settle - (self._first_claim or self._last_settle)
        self._write({"succeeded": self._succeeded, "seconds": seconds})

    def _write(self, report: dict[str, Any]) -> None:
        os.write(self._fd, json.dumps(report).encode() + b"\n")
