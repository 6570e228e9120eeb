"""Read what workers and the forkserver write to stdout and stderr: always, in bounded memory, by line and by job."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from supervisor.workers.channels import CHUNK

GATHER_SECONDS = 0.002  # from the moment a stream is readable until it is read
HOLD_SECONDS = 0.020  # that lines wait for the mark which names their job
RATE = 1_000_000  # bytes a second of one stream; what comes beyond is dropped and counted
LINE_COST = 64  # bytes that a line counts in addition to its own
MAX_LINE_BYTES = 16_384
MAX_TAIL = 16_384
MAX_TAILS = 256
MAX_LAST_READS = 64
MAX_ID_DIGITS = 20
NO_JOB = 0
"""The job id in the mark after the output before the first job."""


class HeldLine(NamedTuple):
    """A line that was not emitted yet, and the job that wrote it; unless it is `sure`, the job is a guess."""

    job_id: int | None
    sure: bool
    line: bytes


Lines = tuple[int | None, list[str]]
"""Lines in a row, and the id of the job that wrote them, if known."""


class OutputSplitter:
    """Splits the bytes of one stream into lines by job. A mark is `token id` and a newline, wherever it stands in a line.

    Lines are held until a mark names their job. A job of less than a millisecond that writes to the descriptor itself leaves no
    mark if its output was read before it ended; then its lines may, rarely, be attributed to the next job.
    """

    def __init__(self, token: bytes) -> None:
        self.tails: dict[int, str] = {}
        """The end of what each job wrote, once a mark has closed it; the newest MAX_TAILS."""
        self._token = token + b" "
        self._partial = b""
        self._held: list[HeldLine] = []
        self._held_before = 0  # how many of these came with earlier reads
        self._tail: deque[tuple[int | None, bytes]] = deque()
        self._tail_size = 0
        self._spent = 0
        self._dropped = 0
        self._last: int | None = None

    @property
    def holds(self) -> bool:
        return bool(self._held or self._dropped)

    def tail(self, job_id: int | None) -> str:
        """Return the end of what this job, or an unknown one, wrote since the last mark."""
        return (self._tail_of(job_id) + _text(self._partial))[-MAX_TAIL:]

    def renew_allowance(self) -> None:
        """Allow RATE bytes more. It is called once a second."""
        self._spent = 0

    def feed(self, data: bytes) -> list[Lines]:
        """Return the lines for which a mark has come."""
        data = self._partial + data
        if self._spent > RATE and self._token not in data:
            self._drop(data)
            return []
        marked: list[Lines] = []
        self._held_before = len(self._held)
        *lines, self._partial = data.split(b"\n")
        for line in lines:
            at = line.find(self._token)
            if at < 0:
                self._hold(line)
                continue
            if at:
                self._hold(line[:at])
            marked += self._mark(line[at + len(self._token) :])
        while len(self._partial) > MAX_LINE_BYTES and not self._ends_in_part_of_a_mark():
            self._hold(self._partial[:MAX_LINE_BYTES])
            self._partial = self._partial[MAX_LINE_BYTES:]
        return marked

    def _ends_in_part_of_a_mark(self) -> bool:
        """Return whether the unfinished line ends in an unfinished mark. Only the first token counts: a job may repeat it."""
        at = self._partial.find(self._token)
        return at >= 0 and len(self._partial) - at < len(self._token) + MAX_ID_DIGITS

    def attribute(self, job_id: int, *, sure: bool) -> None:
        """Attribute the lines after the last mark of the last read to this job, which ran before that read. `sure` is whether it
        ran after the read too; otherwise a later mark may name another job."""
        self._held[self._held_before :] = [
            HeldLine(job_id, sure, held.line) for held in self._held[self._held_before :]
        ]
        if sure:
            self._last = job_id
            self._tail = deque((owner or job_id, line) for owner, line in self._tail)

    def _drop(self, data: bytes) -> None:
        """Drop the data without splitting it into lines: a job that writes too much must not cost time in proportion."""
        keep = len(self._token)  # a mark may begin at the end
        self._dropped += len(data) - keep
        self._remember(data[:-keep])
        self._partial = data[-keep:]

    def _hold(self, line: bytes) -> None:
        self._remember(line + b"\n")
        self._spent += len(line) + LINE_COST
        if self._spent > RATE:
            self._dropped += len(line) + 1
        else:
            self._held.append(HeldLine(None, False, line[:MAX_LINE_BYTES]))

    def _remember(self, data: bytes) -> None:
        end = data[-MAX_TAIL:]
        self._tail.append((None, end))
        self._tail_size += len(end)
        while self._tail_size > 2 * MAX_TAIL:
            _owner, dropped = self._tail.popleft()
            self._tail_size -= len(dropped)

    def _mark(self, number: bytes) -> list[Lines]:
        job_id = int(number) if number.isdigit() and len(number) < MAX_ID_DIGITS else NO_JOB
        self._last = job_id or None
        self._held = [held if held.sure else HeldLine(self._last, True, held.line) for held in self._held]
        if job_id and (tail := self._tail_of(job_id)):
            self.tails[job_id] = tail
            if len(self.tails) > MAX_TAILS:  # a job may write marks of jobs that do not exist
                del self.tails[next(iter(self.tails))]
        self._tail.clear()
        self._tail_size = 0
        return self.flush()

    def _tail_of(self, job_id: int | None) -> str:
        return _text(b"".join(line for owner, line in self._tail if owner in (None, job_id)))[-MAX_TAIL:]

    def flush(self, *, ended: bool = False) -> list[Lines]:
        """Return the lines that are held; with the unfinished line, if the stream has `ended`."""
        if ended and self._partial:
            self._hold(self._partial)
            self._partial = b""
        flushed: list[Lines] = [
            (job_id, [_text(held.line) for held in lines])
            for job_id, lines in groupby(self._held, key=lambda held: held.job_id or self._last)
        ]
        if self._dropped:
            flushed.append((self._last, [f"[{self._dropped} bytes left out: more than {RATE} a second]"]))
        self._held, self._held_before, self._dropped = [], 0, 0
        return flushed


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace").replace("\x00", "\\x00")


class JobsOfStream(Protocol):
    """The jobs of the worker that writes a stream, to which its lines are attributed."""

    def drain(self) -> None:
        """Read the outcomes that have come."""

    def running(self) -> int | None:
        """Return the id of the job that runs, as far as is known: the first one without an outcome."""

    def has_outcomes(self) -> bool:
        """Return whether outcomes have come since the last drain."""


class OutputReader:
    """The supervisor's end of one output stream. `emit` receives lines and the id of their job; without `jobs` that is None."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, token: bytes, jobs: JobsOfStream | None,
        emit: Callable[[int | None, Sequence[str]], None],
    ) -> None:  # fmt: skip
        self._loop = loop
        self._fd = fd
        self._jobs = jobs
        self._emit = emit
        self._splitter = OutputSplitter(token)
        self._at_end = False
        self._flushing: asyncio.TimerHandle | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._allowed_since = loop.time()
        self.tails = self._splitter.tails
        loop.add_reader(fd, self._readable)

    def _readable(self) -> None:
        """Read a moment later: short jobs have written their marks by then, and endless output leaves time for other work."""
        self._loop.remove_reader(self._fd)
        self._gathering = self._loop.call_later(GATHER_SECONDS, self._read_gathered)

    def _read_gathered(self) -> None:
        if self._jobs is not None:
            self._jobs.drain()
        self._read(drained=True)
        if not self._at_end:
            self._loop.add_reader(self._fd, self._readable)

    def read_all(self) -> None:
        """Read what is in the pipe, up to a limit, before outcomes are passed on: a job's output is in the pipe before its outcome is
        sent. A program of the job may write without end."""
        for _ in range(MAX_LAST_READS):
            if not self._read(drained=False):
                return

    def finish(self) -> str:
        """Emit the rest of the output, up to a limit, since a program that outlives the worker may write without end. Return the
        end of what the running job, or an unknown one, wrote since the last mark."""
        for _ in range(MAX_LAST_READS):
            if not self._read(drained=False):
                break
        self._loop.remove_reader(self._fd)
        for timer in (self._flushing, self._gathering):
            if timer is not None:
                timer.cancel()
        tail = self._splitter.tail(self._running())
        self._emit_all(self._splitter.flush(ended=True))
        return tail

    def _read(self, *, drained: bool) -> bool:
        """Read once; return whether there was anything. The running job is known for sure only if outcomes were drained before."""
        running = self._running()
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._at_end = True
            return False
        self._renew_allowance()
        sure = drained and self._jobs is not None and not self._jobs.has_outcomes()
        self._emit_all(self._splitter.feed(data))
        if running is not None:
            self._splitter.attribute(running, sure=sure)
        if self._flushing is not None:
            self._flushing.cancel()
        if sure:
            self._flush()
        elif self._splitter.holds:
            self._flushing = self._loop.call_later(HOLD_SECONDS, self._flush)
        return True

    def _running(self) -> int | None:
        return None if self._jobs is None else self._jobs.running()

    def _renew_allowance(self) -> None:
        now = self._loop.time()
        if now - self._allowed_since > 1.0:
            self._allowed_since = now
            self._splitter.renew_allowance()

    def _flush(self) -> None:
        self._flushing = None
        self._emit_all(self._splitter.flush())

    def _emit_all(self, lines_by_job: Sequence[Lines]) -> None:
        for job_id, lines in lines_by_job:
            self._emit(job_id, lines)
