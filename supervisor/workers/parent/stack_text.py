"""Makes faulthandler's dumps readable: the threads of a job, without the frames of the worker around it."""

from __future__ import annotations

import re
from pathlib import Path

from supervisor import workers
from supervisor.workers.child import heartbeat

OWN_CODE = Path(workers.__file__).parent
HEARTBEAT_FILE = heartbeat.__file__
MAX_CHARACTERS = 16_384
_OWN_FRAME = re.compile(rf'  File "(?P<file>{re.escape(str(OWN_CODE))}/[^"]*)", line \d+ in ')
_HEADING = re.compile(r"(?:Current thread|Thread) (?P<thread>0x[0-9a-f]+)(?: \[[^\]]*\])? \(most recent call first\):$")


def is_whole(dump: str) -> bool:
    """Return whether the dump has come to the worker's own frames: those of its main thread, which are the last."""
    frames = map(_OWN_FRAME.match, dump.splitlines())
    return any(frame["file"] != HEARTBEAT_FILE for frame in frames if frame)


def readable(dump: str) -> str | None:
    """Return the threads of the last dump in `dump`, in order; None if they show nothing of a job."""
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
    shown = [thread for thread in map(_without_own_frames, threads) if len(thread) > 1]
    return "\n\n".join("\n".join(thread) for thread in shown)[:MAX_CHARACTERS] or None


def _without_own_frames(thread: list[str]) -> list[str]:
    """Return the frames from the innermost to the last one above the worker's own; nothing of the heartbeat thread."""
    for at, line in enumerate(thread):
        frame = _OWN_FRAME.match(line)
        if frame:
            return [] if frame["file"] == HEARTBEAT_FILE else thread[:at]
    return thread
