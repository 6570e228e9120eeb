"""Read what workers and the forkserver write to stdout and stderr: always, in bounded memory, by line and by job."""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from supervisor.workers import log_records
from supervisor.workers.channels import CHUNK
from supervisor.workers.interface import OutputLines, WorkerProgress, WorkerRecord, Written

GATHER_SECONDS = 0.002  # from the moment a stream is readable until it is read
HOLD_SECONDS = 0.020  # that lines wait for the mark which names their job
ASYNC_HOLD_SECONDS = 0.250  # in async workers, where nothing but the mark names it: a busy machine writes that late
NOTICE_SECONDS = 1.0
JOB_RATE = 1_000_000  # bytes a second of one job in one stream; what comes beyond is dropped and counted
STREAM_RATE = 4_000_000  # bytes a second of all jobs in one stream; after that, each job that follows in this second has JOB_MINIMUM
JOB_MINIMUM = 16_384
MAX_STREAM_RATE = 2 * STREAM_RATE  # after that, not even marks are read: a job may write any number of them
LEFT_OUT = "{} bytes of {} were left out: a job may write and log 1 MB a second"
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
    record: WorkerRecord | WorkerProgress | None = None  # in place of the line


class OutputSplitter:
    """Splits the bytes of one stream into lines by job, and log records. A mark is `token id` and a newline, wherever it stands in a
    line. Log records begin with the token, too.

    Lines are held until a mark names their job. A job of less than a millisecond that writes to the descriptor itself leaves no
    mark if its output was read before it ended; then its lines may, rarely, be attributed to the next job.
    """

    def __init__(self, token: bytes, stream: str) -> None:
        self.tails: dict[int, str] = {}
        """The end of what each job wrote, once a mark has closed it; the newest MAX_TAILS."""
        self._stream = stream
        self._token = token
        self._mark_token = token + b" "
        self._records = log_records.RecordJoiner()
        self._partial = b""
        self._partial_is_rest = False  # of a line that was dropped
        self._held: list[HeldLine] = []
        self._held_before = 0  # how many of these came with earlier reads
        self._tail: deque[tuple[int | None, bytes]] = deque()
        self._tail_size = 0
        self._spent = 0  # by the job, of what it may write in this second
        self._spent_by_all = 0
        self._dropped = 0  # bytes since the last mark
        self._left_out: dict[int | None, int] = {}  # bytes by job, since the last notice
        self._last: int | None = None

    @property
    def holds(self) -> bool:
        return bool(self._held)

    @property
    def has_dropped(self) -> bool:
        """Return whether a notice is due."""
        return bool(self._dropped or self._left_out)

    def tail(self, job_id: int | None) -> str:
        """Return the end of what this job, or an unknown one, wrote since the last mark."""
        return (self._tail_of(job_id) + _text(self._partial))[-MAX_TAIL:]

    def renew_allowance(self) -> None:
        """Allow every job as many bytes as at first. It is called once a second."""
        self._spent = self._spent_by_all = 0

    def feed(self, data: bytes) -> list[Written]:
        """Return what was written before the marks in the data."""
        data = self._partial + data
        if self._spent_by_all > MAX_STREAM_RATE or (self._spent > self._limit() and self._mark_token not in data):
            self._drop(data)
            return []
        marked: list[Written] = []
        self._held_before = len(self._held)
        *lines, self._partial = data.split(b"\n")
        for line in lines:
            at = line.find(self._token)
            rest = line[at + len(self._token) :] if at >= 0 else b""
            kind = rest[:1]
            if kind not in (b" ", log_records.LAST, log_records.MORE):
                self._hold(line)
                continue
            if at:
                self._hold(line[:at])
            self._partial_is_rest = False
            if kind == b" ":
                marked += self._mark(rest[1:])
            else:
                self._hold_record(rest)
        while len(self._partial) > MAX_LINE_BYTES and not self._ends_in_part_of_a_mark():
            self._hold(self._partial[:MAX_LINE_BYTES])
            self._partial = self._partial[MAX_LINE_BYTES:]
        return marked

    def _ends_in_part_of_a_mark(self) -> bool:
        """Return whether the unfinished line ends in an unfinished mark. Only the first token counts: a job may repeat it."""
        at = self._partial.find(self._token)
        is_record = self._partial[at + len(self._token) :][:1] in (log_records.LAST, log_records.MORE)
        longest = select.PIPE_BUF if is_record else len(self._mark_token) + MAX_ID_DIGITS
        return at >= 0 and len(self._partial) - at < longest

    def attribute(self, job_id: int, *, sure: bool) -> None:
        """Attribute the lines after the last mark of the last read to this job, which ran before that read. `sure` is whether it
        ran after the read too; otherwise a later mark may name another job."""
        self._held[self._held_before :] = [
            held if held.record is not None else HeldLine(job_id, sure, held.line)
            for held in self._held[self._held_before :]
        ]
        if sure:
            self._last = job_id
            self._tail = deque((owner or job_id, line) for owner, line in self._tail)

    def _drop(self, data: bytes) -> None:
        """Drop the data without splitting it into lines: a job that writes too much must not cost time in proportion."""
        keep = len(self._mark_token)  # a mark may begin at the end
        self._partial = data[-keep:]
        self._dropped += len(data) - len(self._partial)
        self._remember(data[:-keep])
        self._partial_is_rest = True

    def _hold(self, line: bytes) -> None:
        self._remember(line + b"\n")
        if self._has_room(len(line)):
            self._held.append(HeldLine(None, False, line[:MAX_LINE_BYTES]))

    def _hold_record(self, line: bytes) -> None:
        if not self._has_room(len(line)):
            return
        try:
            record = self._records.add(line)
        except log_records.NoRecord:
            self._dropped += len(line)
            return
        if isinstance(record, WorkerRecord):
            self._remember(record.text.encode() + b"\n")
        if record is not None:
            self._held.append(HeldLine(record.job_id, True, b"", record))

    def _has_room(self, size: int) -> bool:
        """Return whether so many bytes, of a line, are within the limits. If not, they are dropped and counted."""
        self._spent += size + LINE_COST
        self._spent_by_all += size + LINE_COST
        rest_of_dropped, self._partial_is_rest = self._partial_is_rest, False
        if self._spent <= self._limit() and not rest_of_dropped:
            return True
        self._dropped += size + 1
        return False

    def _limit(self) -> int:
        return JOB_RATE if self._spent_by_all <= STREAM_RATE else JOB_MINIMUM

    def _remember(self, data: bytes) -> None:
        end = data[-MAX_TAIL:]
        self._tail.append((None, end))
        self._tail_size += len(end)
        while self._tail_size > 2 * MAX_TAIL:
            _owner, dropped = self._tail.popleft()
            self._tail_size -= len(dropped)

    def _mark(self, number: bytes) -> list[Written]:
        job_id = int(number) if number.isdigit() and len(number) < MAX_ID_DIGITS else NO_JOB
        self._last = job_id or None
        self._held = [held if held.sure else HeldLine(self._last, True, held.line) for held in self._held]
        self._count_dropped(self._last)
        self._spent = 0
        self._spent_by_all += LINE_COST
        if job_id and (tail := self._tail_of(job_id)):
            self.tails[job_id] = tail
            if len(self.tails) > MAX_TAILS:  # a job may write marks of jobs that do not exist
                del self.tails[next(iter(self.tails))]
        self._tail.clear()
        self._tail_size = 0
        return self.flush()

    def _tail_of(self, job_id: int | None) -> str:
        return _text(b"".join(line for owner, line in self._tail if owner in (None, job_id)))[-MAX_TAIL:]

    def _count_dropped(self, job_id: int | None) -> None:
        if self._dropped:
            job_id = job_id if len(self._left_out) < MAX_TAILS else None
            self._left_out[job_id] = self._left_out.get(job_id, 0) + self._dropped
            self._dropped = 0

    def notice(self, running: int | None) -> list[Written]:
        """Return a warning with the number of bytes dropped since the last one. `running` is the job that runs, as far as is known."""
        self._count_dropped(running)
        left_out, self._left_out = self._left_out, {}
        if not left_out:
            return []
        job_id = next(iter(left_out)) if len(left_out) == 1 else None
        writers = f"its {self._stream}" if len(left_out) == 1 else f"the {self._stream} of {len(left_out)} jobs"
        text = LEFT_OUT.format(sum(left_out.values()), writers)
        return [WorkerRecord(logging.WARNING, "WARNING", "supervisor", text, job_id=job_id)]

    def flush(self, *, ended: bool = False) -> list[Written]:
        """Return what is held; with the unfinished line, if the stream has `ended`."""
        if ended and self._partial:
            self._hold(self._partial)
            self._partial = b""
        held, self._held, self._held_before = self._held, [], 0
        return [*self._written(held)]

    def flush_sure(self) -> list[Written]:
        """Return what is held and whose job is known for sure."""
        if not self._held:
            return []
        sure, self._held = [it for it in self._held if it.sure], [it for it in self._held if not it.sure]
        return [*self._written(sure)]

    def _written(self, held: Sequence[HeldLine]) -> Iterator[Written]:
        for (job_id, record), lines in groupby(held, key=lambda each: (each.job_id or self._last, each.record)):
            if record is not None:
                yield from (record for _ in lines)
            else:
                yield OutputLines(self._stream, job_id, [_text(each.line) for each in lines])


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
    """The supervisor's end of one output stream. `emit` receives lines, with the id of their job if there are `jobs`, and records."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, stream: str, token: bytes, jobs: JobsOfStream | None,
        emit: Callable[[Written], None], hold: float = HOLD_SECONDS,
    ) -> None:  # fmt: skip
        self._hold_seconds = hold
        self._loop = loop
        self._fd = fd
        self._jobs = jobs
        self._emit = emit
        self._splitter = OutputSplitter(token, stream)
        self._at_end = False
        self._noticing: asyncio.TimerHandle | None = None
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
                break
        self._emit_all(self._splitter.flush_sure())

    def finish(self) -> str:
        """Emit the rest of the output, up to a limit, since a program that outlives the worker may write without end. Return the
        end of what the running job, or an unknown one, wrote since the last mark."""
        for _ in range(MAX_LAST_READS):
            if not self._read(drained=False):
                break
        self._loop.remove_reader(self._fd)
        for timer in (self._flushing, self._gathering, self._noticing):
            if timer is not None:
                timer.cancel()
        tail = self._splitter.tail(self._running())
        self._emit_all(self._splitter.flush(ended=True))
        self._notice()
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
            self._flushing = self._loop.call_later(self._hold_seconds, self._flush)
        if self._noticing is None and self._splitter.has_dropped:
            self._noticing = self._loop.call_later(NOTICE_SECONDS, self._notice)
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

    def _notice(self) -> None:
        self._noticing = None
        self._emit_all(self._splitter.notice(self._running()))

    def _emit_all(self, written: Sequence[Written]) -> None:
        for each in written:
            self._emit(each)
