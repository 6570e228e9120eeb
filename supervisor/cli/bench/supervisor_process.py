"""A supervisor in a forked child, for `supervisor bench`: it tells what it did, and doesn't outlive its parent."""

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

from supervisor import telemetry as logs
from supervisor.config.settings import Settings
from supervisor.events import Event, JobsClaimed, JobsSettled, SupervisorStarted
from supervisor.jobs import JobState
from supervisor.runtime.supervisor import Supervisor
from supervisor.text.redaction import Mask
from supervisor.workers.system import linux

CHUNK = 1 << 16

Wait = Callable[[Sequence[int], float | None], list[int]]


class SupervisorEnded(Exception):
    """The benchmark's supervisor ended before it had told what was waited for; its log says why."""


class ForkedSupervisor:
    """`told` becomes readable when it tells something, or has ended."""

    def __init__(self, pid: int, shown: int, wait: Wait) -> None:
        self._pid = pid
        self.shown = shown
        self._wait = wait
        self._text = b""

    def hear(self, seconds: float | None = None) -> dict[str, Any]:
        """The next thing it tells. Raises SupervisorEnded, also if it says nothing for so long."""
        while b"\n" not in self._text:
            if not self._wait([self.shown], seconds):
                raise SupervisorEnded(f"its supervisor has said nothing for {seconds:g}s")
            data = os.read(self.shown, CHUNK)
            if not data:
                raise SupervisorEnded("its supervisor ended too early")
            self._text += data
        line, _, self._text = self._text.partition(b"\n")
        shown: dict[str, Any] = json.loads(line)
        return shown

    def stop(self) -> None:
        """Let it drain. To be called once `hear` has given something."""
        os.kill(self._pid, signal.SIGTERM)
        while self._wait([self.shown], None) and os.read(self.shown, CHUNK):
            pass


@contextmanager
def forked_supervisor(settings: Settings, wait: Wait, *, drain: bool = False) -> Iterator[ForkedSupervisor]:
    """It tells `{"started": true}` when it serves; with `drain`, at its end, how many `succeeded`, and the `seconds`
    from the first claim to the last settle. It is killed, with all that it started, if it still runs when this ends."""
    shown, echo = os.pipe()
    parent_death, alive = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(shown)
        os.close(alive)
        _become_supervisor(settings, drain, echo, parent_death)
    os.close(echo)
    os.close(parent_death)
    try:
        yield ForkedSupervisor(pid, shown, wait)
    finally:
        os.close(alive)
        os.waitpid(pid, 0)
        os.close(shown)


def _become_supervisor(settings: Settings, drain: bool, echo: int, parent_death: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        linux.arm_parent_death(parent_death)
        logs.configure(settings.log.level, settings.log.format, mask=Mask(settings.secrets))
        rate = _Rate(echo)
        code = Supervisor(settings, drain=drain, subscribers=[logs.LogSubscriber(), rate]).run()
        if drain:
            rate.tell_all()
    except Exception:
        traceback.print_exc()
    finally:
        logs.stop()
        sys.stderr.flush()
        os._exit(code)


class _Rate:
    """A subscriber: how many jobs succeeded, from the first claim to the last settle."""

    def __init__(self, echo: int) -> None:
        self._tell = echo
        self._first: float | None = None
        self._last = 0.0
        self._succeeded = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobsSettled):
            self._last = time.monotonic()
            self._succeeded += sum(outcome.state is JobState.SUCCEEDED for outcome in event.outcomes)
        elif isinstance(event, JobsClaimed):
            self._first = self._first or time.monotonic()
        elif isinstance(event, SupervisorStarted):
            self._write({"started": True})

    def tell_all(self) -> None:
        seconds = self._last - (self._first or self._last)
        self._write({"succeeded": self._succeeded, "seconds": seconds})

    def _write(self, value: dict[str, Any]) -> None:
        os.write(self._tell, json.dumps(value).encode() + b"\n")
