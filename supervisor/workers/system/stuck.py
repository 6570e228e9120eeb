"""Processes that SIGKILL does not end at once: they wait in the kernel, for a disk or a network file system for example."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from select import POLLIN, poll

from supervisor.workers.system.process_tree import ENDED

_KILL = 1 << (signal.SIGKILL - 1)


def has_exited(pidfd: int) -> bool:
    waiting = poll()
    waiting.register(pidfd, POLLIN)
    return bool(waiting.poll(0))


def will_do_no_more(pid: int) -> bool:
    """Return whether SIGKILL is pending for the whole process: no thread of it runs code of the program again, whenever it ends."""
    return any(
        line.startswith("ShdPnd:") and int(line.split()[1], 16) & _KILL for line in _lines(f"/proc/{pid}/status")
    )


def where(pid: int) -> str:
    """Return the state of the first thread that has not exited, and the function of the kernel that it waits in, if known."""
    with suppress(OSError):
        for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):  # noqa: PTH208
            state = next(
                (line.split()[1] for line in _lines(f"/proc/{pid}/task/{thread}/status") if line[:6] == "State:"), ""
            )
            if state and state not in ENDED:
                function = "".join(_lines(f"/proc/{pid}/task/{thread}/wchan"))
                return f"state {state}" + (f", in {function}" if function.strip("0") else "")
    return "state unknown"


def _lines(path: str) -> Iterator[str]:
    """Yield none if the file can't be read."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        yield from file
