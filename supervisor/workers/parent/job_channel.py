"""The supervisor's side of one worker's jobs: it sends frames and permits, and reads outcomes and output."""

from __future__ import annotations

import asyncio
import os
import select
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, Protocol

from supervisor.jobs import Lease
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import CHUNK, SupervisorEnds
from supervisor.workers.interface import Reply, WorkerListener
from supervisor.workers.parent.output_reader import HOLD_SECONDS, OutputReader
from supervisor.workers.system import linux

MAX_ERROR_BYTES = 1 << 20  # an outcome without a result: the worker cuts the texts of an error, then escapes them
MAX_ESCAPED = 7  # times the bytes of a result, once it is JSON text inside JSON
FORGED_PERMITS = "its channel of permits has data that the supervisor has not written"
_error_of = itemgetter(4)  # of a Reply: no Python call for each


class SentFrame(NamedTuple):
    number: int
    leases: Sequence[Lease]


class JobChannelOwner(Protocol):
    """The worker process, as its job channel uses it."""

    doing: str

    def became_ready(self) -> None: ...
    def not_ready(self, why: str) -> None: ...
    def channel_broken(self, why: str) -> None: ...
    def job_channel_closed(self, why: str) -> None: ...


class JobChannel:
    """Sends frames, reclaims permits, reads outcomes, and attributes output to jobs. Nothing is read before `listen`; every method
    is a no-op after `close`."""

    hold_seconds = HOLD_SECONDS

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ends: SupervisorEnds, token: bytes,
        owner: JobChannelOwner, listener: WorkerListener, result_limit: int,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._ends: SupervisorEnds | None = ends
        self._owner = owner
        self._listener = listener
        self._max_result = result_limit
        self._max_line_bytes = MAX_ESCAPED * result_limit + MAX_ERROR_BYTES
        self._sends = True
        self._unsent: deque[memoryview] = deque()
        self._frames: deque[SentFrame] = deque()  # those with jobs that have no outcome
        self._replied = 0  # jobs of the first of these frames that have an outcome
        self._before: tuple[deque[SentFrame], int] = deque(), 0  # these two, before the last outcomes
        self._ready_at = 0.0
        self._lines = wire.Lines()
        self._receive: Callable[[bytes], None] | None = None  # None: nothing is read yet
        self._stdout = OutputReader(loop, ends.stdout, "stdout", token, self, listener.output, self.hold_seconds)
        self._stderr = OutputReader(loop, ends.stderr, "stderr", token, self, listener.output, self.hold_seconds)
        loop.add_reader(ends.jobs, self._jobs_closed)

    # jobs and permits

    def send(self, frame: int, leases: Sequence[Lease]) -> None:
        """Send jobs in one frame. Hot path."""
        ends = self._ends
        if ends is None:
            return
        self._frames.append(SentFrame(frame, leases))
        try:
            put = os.write(ends.permits_put, bytes((frame,)) * len(leases))
        except BlockingIOError:
            put = 0
        if put < len(leases):  # a job has filled the pipe
            self._owner.channel_broken(FORGED_PERMITS)
        elif self._sends:
            self._write(wire.encode_frame(frame, leases))

    def send_no_more(self) -> None:
        """Ask the worker to exit. To close the channel would not be enough: a copy of the supervisor may have it open."""
        self._write(wire.NO_MORE + b"\n")

    def stop_sending(self) -> None:
        """Send no more frames, since the worker will take no more permits. Permits are still written, to be reclaimed."""
        self._sends = False

    def _write(self, data: bytes) -> None:
        self._unsent.append(memoryview(data))
        if len(self._unsent) == 1:
            self._send_unsent()

    def _send_unsent(self) -> None:
        ends, unsent = self._ends, self._unsent
        if ends is None:
            return
        while unsent:
            try:
                sent = os.write(ends.jobs, unsent[0])
            except BlockingIOError:
                self._loop.add_writer(ends.jobs, self._send_unsent)
                return
            except OSError:  # the worker has exited, or will
                unsent.clear()
                break
            if sent == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][sent:]
        self._loop.remove_writer(ends.jobs)

    def reclaim(self) -> Mapping[int, int]:
        permits = self._read_permits()
        if permits and not self._sent_permits().endswith(permits):
            self._owner.channel_broken(FORGED_PERMITS)
            return {}
        taken = Counter(permits)
        if taken:
            kept = [SentFrame(frame, leases[: len(leases) - taken.get(frame, 0)]) for frame, leases in self._frames]
            self._frames = deque(frame for frame in kept if frame.leases)
            self._count_replied(0)  # all that is left of the first frame may have an outcome
        return taken

    def _read_permits(self) -> bytes:
        permits = b""
        while self._ends is not None and len(permits) <= CHUNK:  # a pipe holds no more, unless a job fills it meanwhile
            try:
                permits += os.read(self._ends.permits, CHUNK)
            except BlockingIOError:
                break
        return permits

    def _sent_permits(self) -> bytes:
        """Return the permits of the jobs without an outcome: the worker takes them from the front."""
        return b"".join([bytes((frame,)) * len(leases) for frame, leases in self._frames])[self._replied :]

    def untaken(self) -> int:
        return 0 if self._ends is None else linux.bytes_waiting(self._ends.permits)

    def _jobs_closed(self) -> None:
        if self._ends is not None:
            self._loop.remove_reader(self._ends.jobs)
            self._owner.job_channel_closed("it closed its channel of jobs")

    # outcomes

    def listen(self) -> None:
        """Read outcomes from now on, since the pid is known: the worker may be faster than the forkserver's answer."""
        if self._ends is not None:
            self._receive = self._receive_ready
            self._loop.add_reader(self._ends.outcomes, self._read_outcomes)

    def ignore_outcomes(self) -> None:
        self._receive = lambda _block: None

    def drain(self) -> None:
        while self._receive is not None and self._read_outcomes():
            pass

    def _read_outcomes(self) -> bool:
        """Read once; return whether there was anything."""
        ends, receive = self._ends, self._receive
        if ends is None or receive is None:
            return False
        try:
            data = os.read(ends.outcomes, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(ends.outcomes)
            self._owner.job_channel_closed("it closed its channel of outcomes")
            return False
        block = self._lines.block(data)
        if block is not None:
            receive(block)
        elif self._lines.pending > self._max_line_bytes:
            self._owner.channel_broken(f"a line of more than {self._max_line_bytes} bytes")
        return True

    def _receive_ready(self, block: bytes) -> None:
        first, more, rest = block.partition(b"\n")
        while (doing := wire.doing(first)) is not None:
            self._owner.doing = doing
            if not more:
                return
            first, more, rest = rest.partition(b"\n")
        if first != wire.READY:
            try:
                self._owner.not_ready(wire.reason_not_ready(first))
            except wire.Broken as error:
                self._owner.channel_broken(str(error))
            return
        self._receive = self._receive_outcomes
        self._ready_at = self._loop.time()
        self._owner.became_ready()
        if more:
            self._receive_outcomes(rest)

    def _receive_outcomes(self, block: bytes) -> None:
        """Pass the outcomes on. Hot path."""
        replies: list[Reply] = []
        broken = None
        try:
            replies.extend(wire.decode_outcomes(block, self._max_result, self._loop.time() - self._ready_at))
        except wire.Broken as error:
            broken = None if self._note_doing(block.split(b"\n")[len(replies) :]) else str(error)
        self._before = self._frames.copy(), self._replied
        self._count_replied(len(replies))
        if any(map(_error_of, replies)):
            self._stderr.read_all()
            self._stdout.read_all()
            replies = [reply._replace(error=None) if reply.kind == "ok" else reply for reply in replies]
        if self._stderr.tails:
            self._take_tails(replies)
        if replies:
            self._listener.replied(replies)
        if broken is not None:
            self._owner.channel_broken(broken)

    def _note_doing(self, lines: Sequence[bytes]) -> bool:
        """Return whether the lines only name what the worker does after its last job, and note that."""
        found = [wire.doing(line) for line in lines]
        if found[-1] is None or None in found:
            return False
        self._owner.doing = found[-1]
        return True

    def _take_tails(self, replies: Sequence[Reply]) -> None:
        """Add to each failure what its job wrote to stderr."""
        for reply in replies:
            tail = self._stderr.tails.pop(reply.job_id, None)
            if tail is not None and reply.error is not None:
                reply.error["stderr"] = tail  # type: ignore[index]

    def correct(self, right: int) -> None:
        self._frames, self._replied = self._before
        self._count_replied(right)

    def _count_replied(self, count: int) -> None:
        frames = self._frames
        count += self._replied
        while frames and count >= len(frames[0].leases):
            count -= len(frames.popleft().leases)
        self._replied = count if frames else 0

    # output (JobsOfStream)

    def running(self) -> int | None:
        return self._frames[0].leases[self._replied].id if self._frames else None

    def has_outcomes(self) -> bool:
        if self._ends is None:
            return True
        outcomes = select.poll()
        outcomes.register(self._ends.outcomes, select.POLLIN)
        return bool(outcomes.poll(0))

    def finish_output(self) -> str | None:
        """Emit the rest of the output, and return the end of what the running job wrote to stderr."""
        tail = self._stderr.finish()
        self._stdout.finish()
        return tail or None

    def close(self) -> None:
        """Stop reading and writing. The owner of the ends closes them."""
        ends, self._ends = self._ends, None
        if ends is not None:
            self._loop.remove_reader(ends.jobs)
            self._loop.remove_writer(ends.jobs)
            self._loop.remove_reader(ends.outcomes)
