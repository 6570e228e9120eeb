"""Read faulthandler's dumps and make them readable: the threads of a job, without the worker's own frames."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path

from supervisor import workers
from supervisor.workers.channels import CHUNK
from supervisor.workers.child import heartbeat, main

OWN_CODE = Path(workers.__file__).parent
HEARTBEAT_FILE = heartbeat.__file__
MAIN_FILE = main.__file__
MAX_CHARACTERS = 16_384
UNANSWERED = "no stack: the process did not answer the signal for a stack dump in time"
_OWN_FRAME = re.compile(rf'  File "(?P<file>{re.escape(str(OWN_CODE))}/[^"]*)", line \d+ in ')
_HEADING = re.compile(r"(?:Current thread|Thread) (?P<thread>0x[0-9a-f]+)(?: \[[^\]]*\])? \(most recent call first\):$")


def is_whole(dump: str) -> bool:
    """Return whether the dump has reached the worker's own frames in the main thread, which are the last. Other threads of the worker,
    which come before, have no frame in that file."""
    frames = map(_OWN_FRAME.match, dump.splitlines())
    return any(frame["file"] == MAIN_FILE for frame in frames if frame)


def readable(dump: str) -> str | None:
    """Return the threads of the last dump in `dump`, in order; None if they have no frame of a job."""
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
    """Return the thread without the worker's own frames, which are the outermost; nothing of the heartbeat thread."""
    for at, line in enumerate(thread):
        frame = _OWN_FRAME.match(line)
        if frame:
            return [] if frame["file"] == HEARTBEAT_FILE else thread[:at]
    return thread


class StackReader:
    """Reads the worker's dump after `expect`, and calls `received` when more has come. Before `expect` nothing is read: a job that
    writes to the pipe fills it, and costs the supervisor nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pipe: int, received: Callable[[], None]) -> None:
        self._loop = loop
        self._pipe = pipe
        self._received = received
        self._dump = b""
        self._expected = False

    def expect(self) -> None:
        """Prepare for a dump that is being requested: drop what is in the pipe already, and read from now on."""
        self._read()
        self._dump = b""
        self._expected = True
        self._loop.add_reader(self._pipe, self._readable)

    def _readable(self) -> None:
        if self._read():
            self._received()

    def _read(self) -> bool:
        try:
            data = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._pipe)
        self._dump = (self._dump + data)[-CHUNK:]
        return bool(data)

    def is_whole(self) -> bool:
        """Return whether the dump has come down to the worker's own frames."""
        return is_whole(_text(self._dump))

    def stack(self) -> str | None:
        """Read what is left, and return the stack of the job that runs, or the reason why an expected one is missing."""
        self._read()
        if self._expected and not self._dump:
            return UNANSWERED
        return readable(_text(self._dump))

    def close(self) -> None:
        self._loop.remove_reader(self._pipe)


def _text(dump: bytes) -> str:
    return dump.decode(errors="replace")
