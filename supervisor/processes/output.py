"""What workers and the nursery write to stdout and stderr: always drained, in bounded memory, told by line and by job."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

CHUNK = 1 << 16
PAUSE = 0.001  # seconds between two reads of a stream that is past its rate
RATE = 1_000_000  # bytes a second told of one stream; the rest is dropped and counted
LONGEST_LINE = 16_384
TAIL = 16_384
HOLD = 0.020  # seconds that lines wait for the mark which says whose they are

Told = tuple[int | None, list[str]]


class Splitter:
    """Bytes of one stream into lines by job. A mark is `token id` and a newline, wherever it stands in a line.

    What no mark has claimed yet is held, with `guess` as the job that seemed to write it.
    """

    def __init__(self, token: bytes) -> None:
        self._token = token + b" "
        self._partial = b""
        self._held: list[bytes] = []
        self._tail = b""
        self._tails: dict[int, str] = {}
        self._kept = 0
        self._dropped = 0
        self.guess: int | None = None

    @property
    def holds(self) -> bool:
        return bool(self._held or self._dropped)

    @property
    def tail(self) -> str:
        """The end of what no mark has claimed: that of the running job."""
        return _text(self._tail + self._partial)[-TAIL:]

    def take_tail(self, job_id: int) -> str | None:
        """The end of what a job wrote that a mark has closed since the last `forget_tails`."""
        return self._tails.pop(job_id, None)

    def forget_tails(self) -> None:
        self._tails.clear()

    def renew_allowance(self) -> None:
        """Called once a second: so many bytes more are told."""
        self._kept = 0

    def feed(self, data: bytes, guess: int | None) -> list[Told]:
        """Gives what marks have claimed."""
        told: list[Told] = []
        if not self._held:
            self.guess = guess
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            at = line.find(self._token)
            if at < 0:
                self._hold(line)
                continue
            if at:
                self._hold(line[:at])
            told += self._claim(line[at + len(self._token) :])
            self.guess = guess
        while len(self._partial) > LONGEST_LINE and self._token not in self._partial:
            self._hold(self._partial[:LONGEST_LINE])
            self._partial = self._partial[LONGEST_LINE:]
        return told

    def _hold(self, line: bytes) -> None:
        self._tail = (self._tail + line + b"\n")[-TAIL:]
        self._kept += len(line) + 1
        if self._kept > RATE:
            self._dropped += len(line) + 1
        else:
            self._held.append(line[:LONGEST_LINE])

    def _claim(self, number: bytes) -> list[Told]:
        job_id = int(number) if number.isdigit() else 0
        if job_id and self._tail:
            self._tails[job_id] = _text(self._tail)
        self._tail = b""
        self.guess = job_id or None
        return self.flush()

    def flush(self, *, ended: bool = False) -> list[Told]:
        """Tell what is held, as the guessed job's; with the unfinished line, if the stream has `ended`."""
        if ended and self._partial:
            self._hold(self._partial)
            self._partial = b""
        if not self.holds:
            return []
        lines = [_text(line) for line in self._held]
        if self._dropped:
            lines.append(f"[{self._dropped} bytes left out: more than {RATE} a second]")
        self._held, self._dropped = [], 0
        return [(self.guess, lines)]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace").replace("\x00", "\\x00")


class Stream:
    """The supervisor's end of one output pipe. `running` gives the job that runs now; `tell` gets lines and their job."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        token: bytes,
        running: Callable[[], int | None],
        tell: Callable[[int | None, Sequence[str]], None],
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._running = running
        self._tell = tell
        self._since = loop.time()
        self._read_since = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self.lines = Splitter(token)
        loop.add_reader(fd, self._readable)

    def read_now(self) -> bool:
        """One read; whether there may be more."""
        running = self._running()
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._fd)
            return False
        self._allow(len(data))
        for job_id, lines in self.lines.feed(data, running):
            self._tell(job_id, lines)
        if self.lines.holds and self._timer is None:
            self._timer = self._loop.call_later(HOLD, self._flush)
        return True

    def finish(self) -> str:
        """Read and tell what is left, up to a bound: a program that outlives the worker may write on for ever.

        Gives the end of what no mark has claimed.
        """
        self._loop.remove_reader(self._fd)
        for _ in range(64):
            if not self.read_now():
                break
        for timer in (self._timer, self._pause):
            if timer is not None:
                timer.cancel()
        tail = self.lines.tail
        for job_id, lines in self.lines.flush(ended=True):
            self._tell(job_id, lines)
        self._loop.remove_reader(self._fd)
        return tail

    def _readable(self) -> None:
        if self.read_now() and self._read_since > RATE:
            # Drained on, but at a pace that leaves the loop to others.
            self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(PAUSE, self._loop.add_reader, self._fd, self._readable)

    def _allow(self, size: int) -> None:
        now = self._loop.time()
        if now - self._since > 1.0:
            self._since, self._read_since = now, 0
            self.lines.renew_allowance()
        self._read_since += size

    def _flush(self) -> None:
        self._timer = None
        for job_id, lines in self.lines.flush():
            self._tell(job_id, lines)
