"""One worker process as the supervisor holds it: its channels, its signals, its end."""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from supervisor.jobs import Lease
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import SupervisorEnds
from supervisor.workers.interface import ExitReport, Reply, WorkerListener
from supervisor.workers.parent import stack_text as stacks
from supervisor.workers.parent.heartbeat_check import PAUSE, HeartbeatCheck
from supervisor.workers.parent.output_reader import Stream
from supervisor.workers.system import linux
from supervisor.workers.system import process_tree as proctree

CHUNK = 1 << 16
CLOSED_FOR = 1.0  # seconds that a closed channel may come before the death that closed it
STACK_WAIT = 0.040  # seconds from asking for a stack to SIGKILL
STACK_QUIET = 0.002  # seconds of silence after which a whole stack has nothing to add
MAX_ERROR_BYTES = 1 << 20  # bytes of an outcome besides its result: texts are cut by the worker, then escaped


class ProcessOwner(Protocol):
    """Who forks and reaps."""

    loop: asyncio.AbstractEventLoop
    listener: WorkerListener

    def is_ready(self, process: ForkedWorker) -> None: ...
    def drop_order(self, process: ForkedWorker) -> bool: ...
    def reap(self, process: ForkedWorker) -> None: ...
    def oom_killer_was_here(self) -> bool: ...


class ForkedWorker:
    """port.Child: one worker process and the supervisor's ends of its channels."""

    def __init__(
        self, owner: ProcessOwner, number: int, serial: int, ends: SupervisorEnds | None, result_limit: int
    ) -> None:
        self.number = number
        self.serial = serial
        self.pid: int | None = None
        self.token = secrets.token_hex(16)
        self.dying = False
        self.forkserver: object = None  # the one that was told to fork it
        self.start_error: str | None = None
        self._owner = owner
        self._loop = owner.loop
        self._listener = owner.listener
        self._limit = 7 * result_limit + MAX_ERROR_BYTES
        self._ends = ends
        self._pidfd: int | None = None
        self._lines = wire.Lines()
        self._received = self._hear_ready
        self._reading = False
        self._unsent: deque[memoryview] = deque()
        self._retiring = False
        self._killed = False
        self._outcomes_ignored = False
        self._frames: deque[tuple[int, Sequence[Lease]]] = deque()
        self._replied = 0  # of the first of these frames
        self._heartbeats = HeartbeatCheck()
        self._dump = self._dump_before = b""
        self._kill_timer: asyncio.TimerHandle | None = None
        if ends is not None:
            self._watch(ends)

    def _watch(self, ends: SupervisorEnds) -> None:
        self._loop.add_reader(ends.heartbeat, self._heartbeat_readable)
        self._loop.add_reader(ends.jobs, self._jobs_closed)
        self._loop.add_reader(ends.stack, self._dumping)
        token = self.token.encode()
        self._stdout = Stream(self._loop, ends.stdout, token, self._running, self._runs_on, self._stdout_lines)
        self._stderr = Stream(self._loop, ends.stderr, token, self._running, self._runs_on, self._stderr_lines)

    # jobs and outcomes

    def send(self, frame: int, leases: Sequence[Lease]) -> None:
        ends = self._ends
        if ends is None:
            return
        try:
            put = os.write(ends.permits_put, bytes((frame,)) * len(leases))
        except BlockingIOError:
            put = 0
        if put < len(leases):
            raise RuntimeError(f"worker {self.number}: no room for {len(leases)} permits: too many frames outstanding")
        if self.dying:  # nobody takes these permits: they come back with the next take_back
            return
        self._frames.append((frame, leases))
        self._write(wire.encode_frame(frame, leases))

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
            except OSError:  # it is dead, or will be
                unsent.clear()
                break
            if sent == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][sent:]
        self._loop.remove_writer(ends.jobs)

    def reclaim(self) -> Mapping[int, int]:
        taken: dict[int, int] = {}
        while self._ends is not None:
            try:
                permits = os.read(self._ends.permits, CHUNK)
            except BlockingIOError:
                break
            for frame in permits:
                taken[frame] = taken.get(frame, 0) + 1
        if taken:
            self._forget_frames(taken)
        return taken

    def untaken(self) -> int:
        return 0 if self._ends is None else linux.bytes_waiting(self._ends.permits)

    def _forget_frames(self, taken: Mapping[int, int]) -> None:
        kept = [(frame, leases[: len(leases) - taken.get(frame, 0)]) for frame, leases in self._frames]
        self._frames = deque(pair for pair in kept if pair[1])
        self._note_replied(0)  # of the first frame all that is left may have been replied to

    def _jobs_closed(self) -> None:
        """By the worker: nobody reads them any more."""
        if self._ends is not None:
            self._loop.remove_reader(self._ends.jobs)
            if not self._retiring:
                self._expect_end("it closed its channel of jobs")

    def drain(self) -> None:
        while self._ends is not None and self.pid is not None and self._read_outcomes():
            pass

    def _readable(self) -> None:
        self._read_outcomes()

    def _read_outcomes(self) -> bool:
        ends = self._ends
        if ends is None:
            return False
        try:
            data = os.read(ends.outcomes, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(ends.outcomes)
            if not self._retiring:
                self._expect_end("it closed its channel of outcomes")
            return False
        block = self._lines.block(data)
        if block is not None:
            self._received(block)
        elif self._lines.pending > self._limit:
            self._break(f"a line of more than {self._limit} bytes")
        return True

    def _expect_end(self, why: str) -> None:
        """What only a death should have done must be followed by it."""
        if not self.dying:
            self._loop.call_later(CLOSED_FOR, self._break, why)

    def _hear_ready(self, block: bytes) -> None:
        first, more, rest = block.partition(b"\n")
        if first != wire.READY:
            self._break(f"expected {wire.READY!r}, got {first[:80]!r}")
            return
        self._received = self._hear_outcomes
        self._owner.is_ready(self)
        self._listener.ready(self)
        if more:
            self._hear_outcomes(rest)

    def _hear_outcomes(self, block: bytes) -> None:
        """Hot path: plain on purpose."""
        if self._outcomes_ignored:
            return
        replies: list[Reply] = []
        broken = None
        try:
            replies.extend(wire.decode_outcomes(block))
        except wire.Broken as error:
            broken = str(error)
        self._dump = b""
        self._note_replied(len(replies))
        for reply in replies:
            if reply[4] is not None:
                self._add_stderr(replies)
                break
        if replies:
            self._listener.replied(self, replies)
        if broken is not None:
            self._break(broken)

    def _note_replied(self, count: int) -> None:
        frames = self._frames
        count += self._replied
        while frames and count >= len(frames[0][1]):
            count -= len(frames.popleft()[1])
        self._replied = count if frames else 0

    def _add_stderr(self, replies: Sequence[Reply]) -> None:
        """What a job wrote stands in its pipe before its outcome stands in its channel."""
        self._reading = True
        while self._stderr.read_now():
            pass
        self._reading = False
        for reply in replies:
            if reply.error is not None:
                tail = self._stderr.lines.take_tail(reply.job_id)
                if tail is not None:
                    reply.error["stderr"] = tail  # type: ignore[index]
        self._stderr.lines.forget_tails()

    def _running(self) -> int | None:
        """The job that runs now, as far as is known: the first one without an outcome."""
        if not self._reading:
            self.drain()
        return self._first_unsettled()

    def _runs_on(self) -> bool:
        """Whether no outcome has come since the channel was drained."""
        if self._ends is None or self._reading:
            return False
        outcomes = select.poll()
        outcomes.register(self._ends.outcomes, select.POLLIN)
        return not outcomes.poll(0)

    def _first_unsettled(self) -> int | None:
        return self._frames[0][1][self._replied].id if self._frames else None

    # beats, stacks, output

    def _heartbeat_readable(self) -> None:
        if self._ends is None:
            return
        heartbeat = self._ends.heartbeat
        data = self._read_pipe(heartbeat)
        if data is None:
            return
        self._loop.remove_reader(heartbeat)
        if not data:
            self._expect_end("it closed its heartbeat pipe")
            return
        if fault := self._heartbeats.fault(data):
            self._break(fault)
            return
        self._listener.heartbeat(self)
        self._loop.call_later(PAUSE, self._listen_for_heartbeats)

    def _listen_for_heartbeats(self) -> None:
        if self._ends is not None:
            self._loop.add_reader(self._ends.heartbeat, self._heartbeat_readable)

    def _dumping(self) -> None:
        data = (self._read_pipe(self._ends.stack) if self._ends else None) or b""
        self._dump = (self._dump + data)[-CHUNK:]
        if self._kill_timer is not None and data and stacks.is_whole(_text(self._dump)):
            deadline = min(self._kill_timer.when(), self._loop.time() + STACK_QUIET)
            self._kill_timer.cancel()
            self._kill_timer = self._loop.call_at(deadline, self._kill_now)

    def _read_pipe(self, fd: int) -> bytes | None:
        """One read: None if there is nothing to read now, empty at the end."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return None
        if not data:
            self._loop.remove_reader(fd)
        return data

    def _stdout_lines(self, job_id: int | None, lines: Sequence[str]) -> None:
        self._listener.output(self, "stdout", job_id, lines)

    def _stderr_lines(self, job_id: int | None, lines: Sequence[str]) -> None:
        self._listener.output(self, "stderr", job_id, lines)

    # its end

    def _break(self, why: str) -> None:
        if not self.dying:
            self._listener.channel_broken(self, why)
            self.kill()

    def retire(self) -> None:
        if self._ends is None or self._retiring:
            return
        self._retiring = True
        if self._owner.drop_order(self):
            return
        # Not by closing the channel: a plugin may have forked the supervisor, and hold it open.
        self._write(wire.NO_MORE + b"\n")

    def kill(self, *, with_stack: bool = False) -> None:
        if self.dying:
            return
        self.dying = True
        if self._pidfd is None or not with_stack:
            self._kill_now()
            return
        # The signal may interrupt the call that hangs, which must not pass for success: the job is condemned already.
        self._outcomes_ignored = True
        self._dump_before, self._dump = self._dump, b""  # written by itself, in case that nothing comes now
        linux.send_signal(self._pidfd, linux.STACK_SIGNAL)
        self._kill_timer = self._loop.call_later(STACK_WAIT, self._kill_now)

    def _kill_now(self) -> None:
        self._kill_timer = None
        self._killed = True
        if self.pid is None or self._pidfd is None:  # its number is still to come, if it was ordered at all
            self._owner.drop_order(self)
            return
        below = proctree.Snapshot(self.pid)
        self._kill_group()
        linux.send_signal(self._pidfd, signal.SIGKILL)  # it may have gone to another group
        below.kill()

    def _kill_group(self) -> None:
        """Safe as long as the process is not reaped: its number can't pass to another."""
        if self.pid is not None and self._pidfd is not None and linux.exists(self._pidfd):
            linux.kill_group(self.pid)

    def was_forked(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._loop.add_reader(pidfd, self._exited)
        if self._ends is not None:  # it may have been quicker than the nursery's word of it
            self._loop.add_reader(self._ends.outcomes, self._readable)
        if self._killed:
            self._kill_now()

    def never_ready(self, timeout: float) -> None:
        self._break(f"not ready after {timeout:g}s")

    def _exited(self) -> None:
        """It is dead, and a zombie until reaped, so its group may still be signalled by its number."""
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        self.dying = True
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._kill_group()
        self.drain()
        self._listener.exited(self)
        self._owner.reap(self)

    def is_over(self, status: int | None, peak: int | None) -> None:
        """Reaped, or never born: its last word is told, and all that was open for it is closed."""
        self.dying = True
        stderr = self._finish_output()
        code, number = _how_it_ended(status)
        oom = number == signal.SIGKILL and not self._killed and self._owner.oom_killer_was_here()
        death = ExitReport(
            pid=self.pid or 0,
            exit_code=code,
            signal=None if number is None else linux.name_of_signal(number),
            peak_memory=peak,
            oom_suspected=oom,
            stack=stacks.readable(_text(self._dump)) or stacks.readable(_text(self._dump_before)),
            stderr=stderr,
            start_error=self.start_error,
        )
        self._listener.ended(self, death)
        self._close()

    def release_in_copy(self) -> None:
        """In a copy of this process: closed by the last who has it open, this kills the worker."""
        if self._ends is not None:
            os.close(self._ends.parent_death)

    def abandon(self) -> None:
        """It is not waited for any longer, and nothing more is heard of it."""
        self._finish_output()
        self._close()

    def _finish_output(self) -> str | None:
        if self._ends is None:
            return None
        self._dumping()
        self._reading = True
        tail = self._stderr.finish(self._first_unsettled())
        self._stdout.finish()
        return tail or None

    def _close(self) -> None:
        ends, self._ends = self._ends, None
        if ends is not None:
            for fd in (ends.jobs, ends.outcomes, ends.heartbeat, ends.stack):
                self._loop.remove_reader(fd)
            self._loop.remove_writer(ends.jobs)
            ends.close()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    # what it uses

    def cpu_seconds(self) -> float | None:
        now = None if self.pid is None or self._pidfd is None else proctree.stat(self.pid)
        return None if now is None or now.state in "ZX" else now.cpu_seconds

    def memory(self) -> int | None:
        return None if self.pid is None or self._pidfd is None else proctree.resident_bytes(self.pid)


def _text(dump: bytes) -> str:
    return dump.decode(errors="replace")


def _how_it_ended(status: int | None) -> tuple[int | None, int | None]:
    """Exit code and signal of a status as waitpid gives it."""
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.waitstatus_to_exitcode(status), None
