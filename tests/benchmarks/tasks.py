"""What the jobs do, the same for every contender. Kept light: workers import it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

Payload = Mapping[str, Any]


def noop(payload: Payload) -> None:
    pass


def stamp(payload: Payload) -> None:
    """Appends `id time_ns pid` to the file `to`."""
    line = b"%s %d %d\n" % (str(payload["id"]).encode(), time.time_ns(), os.getpid())
    out = os.open(payload["to"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(out, line)
    os.close(out)


def sleep(payload: Payload) -> None:
    """Stamps if there is a file `to`, and sleeps for `seconds`."""
    if "to" in payload:
        stamp(payload)
    time.sleep(payload["seconds"])


def hang(payload: Payload) -> None:
    """Stamps, and then hangs for an hour in the way that `kind` names: loop, sleep, regex, c_call (which holds the GIL), deaf (to
    every signal that can be ignored) or program (which it waits for)."""
    stamp(payload)
    match payload["kind"]:
        case "loop":
            while True:
                pass
        case "sleep":
            time.sleep(3600)
        case "regex":
            import re

            re.match(r"(a+)+$", "a" * 64 + "b")
        case "c_call":
            import ctypes

            # Two locks of one mutex: unlike a sleep, no signal ends that.
            library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
            library.pthread_mutex_lock(mutex)
            library.pthread_mutex_lock(mutex)
        case "deaf":
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            time.sleep(3600)
        case "program":
            import subprocess

            subprocess.run(["sh", "-c", "trap '' TERM INT HUP; sleep 3600"], check=False)
        case kind:
            raise ValueError(f"no such way to hang: {kind}")


def die(payload: Payload) -> None:
    """Stamps, and kills its own process."""
    stamp(payload)
    os.kill(os.getpid(), signal.SIGKILL)


class Again(Exception):
    """Run this job again in `delay` seconds."""

    def __init__(self, delay: float) -> None:
        super().__init__("fails at its first attempt")
        self.delay = delay


def flaky(payload: Payload, attempt: int) -> None:
    """Stamps. The first attempt (1) fails: Again, in `delay` seconds or at `due`, in seconds since the epoch. The next one
    sleeps for `seconds`."""
    stamp(payload)
    if attempt == 1:
        raise Again(payload["delay"] if "delay" in payload else max(0.0, payload["due"] - time.time()))
    time.sleep(payload["seconds"])
