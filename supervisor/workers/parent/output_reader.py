"""What workers and the nursery write to stdout and stderr: always drained, in bounded memory, told by line and by job."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

CHUNK = 1 << 16
GATHER = 0.002  # seconds from a stream's becoming readable to its being read
RATE = 1_000_000  # bytes a second told of one stream; the rest is dropped and counted
LINE_COST = 64  # bytes that a line is counted for besides its own
MAX_LINE_BYTES = 16_384
MAX_LAST_READS = 64
MAX_ID_DIGITS = 20  # digits
NO_JOB = 0  # in a mark: what was written before the first job
TAIL = 16_384
HOLD = 0.020  # seconds that lines wait for the mark which says whose they are


class Held(NamedTuple):
    """A line and the job that wrote it: surely, or by the best guess."""

    owner: int | None
    surely: bool
    line: bytes


Told = tuple[int | None, list[str]]


class Splitter:
    """Bytes of one stream into lines by job. A mark is `token id` and a newline, wherever it stands in a line.

    What no mark has claimed yet is held. A job of less than a millisecond that writes to the descriptor itself leaves no
    mark if that was read before its end: what it wrote may, seldom, be told as the next job's.
    """

    def __init__(self, token: bytes) -> None:
        self._token = token + b" "
        self._partial = b""
        self._held: list[Held] = []
        self._fresh = 0  # so many of them are of earlier reads
        self._tail: deque[tuple[int | None, bytes]] = deque()
        self._tail_size = 0
        self._tails: dict[int, str] = {}
        self._spent = 0
        self._dropped = 0
        self._last: int | None = None

    @property
    def holds(self) -> bool:
        return bool(self._held or self._dropped)

    def tail(self, job_id: int | None) -> str:
        """The end of what this job, or nobody known, wrote since the last mark."""
        return (self._tail_of(job_id) + _text(self._partial))[-TAIL:]

    def take_tail(self, job_id: int) -> str | None:
        """The end of what a job wrote that a mark has closed since the last `forget_tails`."""
        return self._tails.pop(job_id, None)

    def forget_tails(self) -> None:
        self._tails.clear()

    def renew_allowance(self) -> None:
        """Called once a second: so many bytes more are told."""
        self._spent = 0

    def feed(self, data: bytes) -> list[Told]:
        """Gives what marks have claimed."""
        data = self._partial + data
        if self._spent > RATE and self._token not in data:
            self._drop(data)
            return []
        told: list[Told] = []
        self._fresh = len(self._held)
        *lines, self._partial = data.split(b"\n")
        for line in lines:
            at = line.find(self._token)
            if at < 0:
                self._hold(line)
                continue
            if at:
                self._hold(line[:at])
            told += self._claim(line[at + len(self._token) :])
        while len(self._partial) > MAX_LINE_BYTES and not self._ends_in_half_a_mark():
            self._hold(self._partial[:MAX_LINE_BYTES])
            self._partial = self._partial[MAX_LINE_BYTES:]
        return told

    def _ends_in_half_a_mark(self) -> bool:
        """By the first token in it: a job that knows its own may write it again and again."""
        at = self._partial.find(self._token)
        return at >= 0 and len(self._partial) - at < len(self._token) + MAX_ID_DIGITS

    def own(self, job_id: int, *, surely: bool) -> None:
        """This job ran before a read and, if `surely`, after it: then what that brought after its last mark is its own.

        Otherwise it is if no mark comes to tell.
        """
        self._held[self._fresh :] = [Held(job_id, surely, held.line) for held in self._held[self._fresh :]]
        if surely:
            self._last = job_id
            self._tail = deque((owner or job_id, line) for owner, line in self._tail)

    def _drop(self, data: bytes) -> None:
        """Without a look at its lines: whoever writes so much must not cost so much."""
        keep = len(self._token)  # a mark may begin at its end
        self._dropped += len(data) - keep
        self._remember(data[:-keep])
        self._partial = data[-keep:]

    def _hold(self, line: bytes) -> None:
        self._remember(line + b"\n")
        self._spent += len(line) + LINE_COST
        if self._spent > RATE:
            self._dropped += len(line) + 1
        else:
            self._held.append(Held(None, False, line[:MAX_LINE_BYTES]))

    def _remember(self, data: bytes) -> None:
        self._tail.append((None, data[-TAIL:]))
        self._tail_size += len(self._tail[-1][1])
        while self._tail_size > 2 * TAIL:
            self._tail_size -= len(self._tail.popleft()[1])

    def _claim(self, number: bytes) -> list[Told]:
        job_id = int(number) if number.isdigit() and len(number) < MAX_ID_DIGITS else NO_JOB
        self._last = job_id or None
        self._held = [held if held.surely else Held(self._last, True, held.line) for held in self._held]
        if job_id and (mine := self._tail_of(job_id)):
            self._tails[job_id] = mine
        self._tail.clear()
        self._tail_size = 0
        return self.flush()

    def _tail_of(self, job_id: int | None) -> str:
        return _text(b"".join(line for owner, line in self._tail if owner in (None, job_id)))[-TAIL:]

    def flush(self, *, ended: bool = False) -> list[Told]:
        """Tell what is held; with the unfinished line, if the stream has `ended`."""
        if ended and self._partial:
            self._hold(self._partial)
            self._partial = b""
        told: list[Told] = []
        for owner, lines in groupby(self._held, key=lambda held: held.owner or self._last):
            told.append((owner, [_text(held.line) for held in lines]))
        if self._dropped:
            told.append((self._last, [f"[{self._dropped} bytes left out: more than {RATE} a second]"]))
        self._held, self._fresh, self._dropped = [], 0, 0
        return told


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace").replace("\x00", "\\x00")


class Stream:
    """The supervisor's end of one output pipe. `running` gives the job that runs now, `still` whether it
    has run on since that was asked; `tell` gets lines and their job.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        token: bytes,
        running: Callable[[], int | None],
        still: Callable[[], bool],
        tell: Callable[[int | None, Sequence[str]], None],
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._running = running
        self._still = still
        self._tell = tell
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._allowed_since = loop.time()
        self.lines = Splitter(token)
        loop.add_reader(fd, self._readable)

    def read_now(self) -> bool:
        """One read; whether there was anything."""
        running = self._running()
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._ended = True
            return False
        self._renew_allowance()
        surely = self._still()
        self._tell_all(self.lines.feed(data))
        if running is not None:
            self.lines.own(running, surely=surely)
        if self._timer is not None:
            self._timer.cancel()
        if surely:
            self._flush()
        elif self.lines.holds:
            self._timer = self._loop.call_later(HOLD, self._flush)
        return True

    def finish(self, job_id: int | None = None) -> str:
        """Read and tell what is left, up to a bound: a program that outlives the worker may write on for ever.

        Gives the end of what this job, or nobody known, wrote since the last mark.
        """
        for _ in range(MAX_LAST_READS):
            if not self.read_now():
                break
        self._ended = True
        self._loop.remove_reader(self._fd)
        for timer in (self._timer, self._gathering):
            if timer is not None:
                timer.cancel()
        tail = self.lines.tail(job_id)
        self._tell_all(self.lines.flush(ended=True))
        return tail

    def _readable(self) -> None:
        """Not at once: short jobs get to their marks first, and endless output leaves the loop to others."""
        self._loop.remove_reader(self._fd)
        self._gathering = self._loop.call_later(GATHER, self._read_gathered)

    def _read_gathered(self) -> None:
        self.read_now()
        if not self._ended:
            self._loop.add_reader(self._fd, self._readable)

    def _renew_allowance(self) -> None:
        now = self._loop.time()
        if now - self._allowed_since > 1.0:
            self._allowed_since = now
            self.lines.renew_allowance()

    def _flush(self) -> None:
        self._timer = None
        self._tell_all(self.lines.flush())

    def _tell_all(self, told: Sequence[Told]) -> None:
        for job_id, lines in told:
            self._tell(job_id, lines)
