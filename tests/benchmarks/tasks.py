"""The tasks of the jobs, the same for every contender. Workers import this module, so it imports little."""

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
    """Append `id time_ns pid` to the file `to`."""
    line = b"%s %d %d\n" % (str(payload["id"]).encode(), time.time_ns(), os.getpid())
    out = os.open(payload["to"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(out, line)
    os.close(out)


def sleep(payload: Payload) -> None:
    """Sleep for `seconds`, after a stamp if there is a file `to`."""
    if "to" in payload:
        stamp(payload)
    time.sleep(payload["seconds"])


async def nap(payload: Payload) -> None:
    """Sleep for `seconds` without a thread, then stamp if there is a file `to`."""
    import asyncio  # the workers of other rows do without

    await asyncio.sleep(payload["seconds"])
    if "to" in payload:
        stamp(payload)


async def limited(payload: Payload) -> None:
    """Sleep for `seconds`, between a stamp of `+id` and one of `-id`. The first attempt of a job with `hold` sleeps for an hour."""
    import asyncio

    stamp({**payload, "id": f"+{payload['id']}"})
    await asyncio.sleep(3600 if payload.get("hold") and _is_first(payload) else payload["seconds"])
    stamp({**payload, "id": f"-{payload['id']}"})


def _is_first(payload: Payload) -> bool:
    try:
        os.close(os.open(f"{payload['to']}-{payload['id']}", os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def hang(payload: Payload) -> None:
    """Stamp, and hang for an hour in the way of `kind`: loop, sleep, regex, c_call (holds the GIL), ignore_signals, or program (waits
    for one that ignores TERM)."""
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

            # The second lock of a mutex waits for ever, and unlike a sleep it is not interrupted by a signal.
            library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
            library.pthread_mutex_lock(mutex)
            library.pthread_mutex_lock(mutex)
        case "ignore_signals":
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            time.sleep(3600)
        case "program":
            import subprocess

            subprocess.run(["sh", "-c", "trap '' TERM INT HUP; sleep 3600"], check=False)
        case kind:
            raise ValueError(f"no such way to hang: {kind}")


def die(payload: Payload) -> None:
    """Stamp, and kill the own process."""
    stamp(payload)
    os.kill(os.getpid(), signal.SIGKILL)


class Again(Exception):
    """Run this job again in `delay` seconds."""

    def __init__(self, delay: float) -> None:
        super().__init__("fails at its first attempt")
        self.delay = delay


def flaky(payload: Payload, attempt: int) -> None:
    """Stamp. Attempt 1 raises Again, due in `delay` seconds or at `due` in seconds since the epoch; the next one sleeps for
    `seconds`."""
    stamp(payload)
    if attempt == 1:
        raise Again(payload["delay"] if "delay" in payload else max(0.0, payload["due"] - time.time()))
    time.sleep(payload["seconds"])
