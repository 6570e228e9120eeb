"""faulthandler's dumps made readable: the threads of a job, without the machinery around it."""

from __future__ import annotations

import re
from pathlib import Path

from supervisor import workers
from supervisor.workers.child.main import Heartbeat

OWN_CODE = Path(workers.__file__).parent
_MACHINERY = re.compile(rf'  File "{re.escape(str(OWN_CODE))}/[^"]*", line \d+ in (?P<function>\w+)$')
_HEADING = re.compile(r"(?:Current thread|Thread) (?P<thread>0x[0-9a-f]+)(?: \[[^\]]*\])? \(most recent call first\):$")
HEARTBEAT = Heartbeat.run.__name__
MOST = 16_384


def is_whole(dump: str) -> bool:
    """Whether it has come down to the worker's own frames: the main thread's are the last."""
    frames = map(_MACHINERY.match, dump.splitlines())
    return any(frame["function"] != HEARTBEAT for frame in frames if frame)


def readable(dump: str) -> str | None:
    """The last dump in `dump`, its threads in order; None if it shows nothing of a job."""
    threads: list[list[str]] = []
    seen: set[str] = set()
    for line in dump.splitlines():
        if heading := _HEADING.match(line):
            if heading["thread"] in seen:  # another dump begins
                threads, seen = [], set()
            seen.add(heading["thread"])
            threads.append([line])
        elif threads and line.startswith("  "):
            threads[-1].append(line)
    shown = [thread for thread in map(_without_machinery, threads) if len(thread) > 1]
    return "\n\n".join("\n".join(thread) for thread in shown)[:MOST] or None


def _without_machinery(thread: list[str]) -> list[str]:
    """Frames from the innermost to the last one above the worker's own; none of the worker's heart."""
    for at, line in enumerate(thread):
        frame = _MACHINERY.match(line)
        if frame:
            return [] if frame["function"] == HEARTBEAT else thread[:at]
    return thread
