"""The supervisor's side of one nursery process: its start, what it says, and its end."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from supervisor.plugins.reports import SourceReport, reports_from
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import Opened, WorkerEnds, close_ends
from supervisor.workers.interface import WorkerOptions
from supervisor.workers.parent.output_reader import Stream
from supervisor.workers.system import interpreter, linux
from supervisor.workers.system import process_tree as proctree

CHUNK = 1 << 16
MAX_LINE_BYTES = 1 << 26  # bytes: all that went wrong in all plugins, with their tracebacks
MAX_STATUS = 0xFFFF  # as waitpid gives it
MAX_FDS = 64  # that came before the lines which they belong to
REAPED = -1
STOPPED = 0.05  # seconds without an answer after which it may have been stopped by a signal
TIMEOUT = 10.0  # seconds for an answer; a nursery that gives none in so long is stuck, and is replaced


class ForkserverListener(Protocol):
    """Who listens to the nursery. `ended` is its last word."""

    def forkserver_ready(self, link: ForkserverClient, reports: list[SourceReport]) -> None: ...
    def forked(self, serial: int, pid: int, pidfd: int) -> None: ...
    def not_forked(self, serial: int, why: str) -> None: ...
    def reaped(self, serial: int, status: int | None, peak: int | None) -> None: ...
    def forkserver_output(self, link: ForkserverClient, stream: str, lines: Sequence[str]) -> None: ...
    def forkserver_ended(self, link: ForkserverClient, how: str, blamed: SourceReport | None) -> None: ...


class ForkserverClient:
    """A nursery from its start to its end. All orders may be given at once; they are sent as soon as it takes them."""

    number = 0

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: WorkerOptions, listener: ForkserverListener, skip: Sequence[str]
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._import_timeout = options.import_timeout
        self._importing: str | None = None
        self._late: str | None = None
        self._fault: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._orders: deque[tuple[bytes, WorkerEnds | None]] = deque()
        self._unanswered = 0
        self._lines = wire.Lines()
        self._fds: deque[int] = deque()
        self.ready = False
        self.started = loop.time()
        self._start(options, skip)

    def _start(self, options: WorkerOptions, skip: Sequence[str]) -> None:
        """Raises OSError, with nothing left open or running."""
        opened = Opened()
        try:
            channel, theirs = opened.pair()
            parent_death, self._parent_death = opened.pipe()
            (stdout, their_stdout), (stderr, their_stderr) = opened.pipe(), opened.pipe()
            passed = [theirs, parent_death, *([] if options.owner_fd is None else [options.owner_fd])]
            self._process, self._pidfd = _start_process(
                passed, their_stdout, their_stderr, {**os.environ, **options.variables}
            )
        except OSError:
            opened.close()
            raise
        for fd in (theirs, parent_death, their_stdout, their_stderr):
            os.close(fd)
        self.pid = self._process.pid
        self._channel = socket.socket(fileno=channel)
        self._channel.setblocking(False)
        for fd in (stdout, stderr):
            os.set_blocking(fd, False)
        token = secrets.token_hex(16).encode()  # told to nobody: a nursery runs no jobs
        self._outputs = [
            (fd, Stream(self._loop, fd, token, _nothing_runs, _never, partial(self._said, name)))
            for name, fd in (("stdout", stdout), ("stderr", stderr))
        ]
        self._loop.add_reader(self._channel, self._readable)
        self._loop.add_reader(self._pidfd, self._ended)
        self._order(_hello(options, skip))
        self._expect(self._import_timeout)

    # what it is told

    def fork(self, order: wire.Fork, ends: WorkerEnds) -> None:
        """Takes over `ends`."""
        self._ask(order, ends)

    def reap(self, serial: int) -> None:
        self._ask(wire.Reap(serial))

    def release_in_copy(self) -> None:
        """In a copy of this process: the nursery ends with the last who has these open."""
        os.close(self._parent_death)
        self._channel.close()

    def stop(self) -> None:
        """One that still imports hears nothing, and has nothing to lose."""
        if self.ready:
            self._order(wire.Stop())
        else:
            self.kill()

    def kill(self) -> None:
        """With all below it while it imports; once there are workers, alone."""
        below = None if self.ready else proctree.Snapshot(self.pid)
        linux.send_signal(self._pidfd, signal.SIGKILL)
        if below is not None:
            linux.kill_group(self.pid)
            below.kill()

    def _ask(self, message: wire.Message, ends: WorkerEnds | None = None) -> None:
        self._unanswered += 1
        if self._unanswered == 1:
            self._expect(TIMEOUT)
        self._order(message, ends)

    def _order(self, message: wire.Message, ends: WorkerEnds | None = None) -> None:
        self._orders.append((wire.encode(message), ends))
        if len(self._orders) == 1:
            self._send_orders()

    def _send_orders(self) -> None:
        while self._orders:
            data, ends = self._orders[0]
            try:
                if ends is None:
                    sent = self._channel.send(data)
                else:
                    sent = socket.send_fds(self._channel, [data], ends)
                    close_ends(ends)
            except BlockingIOError:
                self._loop.add_writer(self._channel, self._send_orders)
                return
            except OSError:  # it has gone; its end will be told
                return
            self._orders.popleft()
            if sent < len(data):
                self._orders.appendleft((data[sent:], None))
        self._loop.remove_writer(self._channel)

    # what it says

    def _readable(self) -> None:
        try:
            data, fds, _flags, _address = socket.recv_fds(self._channel, CHUNK, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self._loop.remove_reader(self._channel)
            self.kill()
            return
        for fd in fds:
            os.set_inheritable(fd, False)
        self._fds.extend(fds)
        try:
            for line in self._lines.split(data):
                self._hear(wire.decode(line))
            if self._lines.pending > MAX_LINE_BYTES or len(self._fds) > MAX_FDS:
                raise wire.Broken("a line without end, or descriptors without lines")
        except wire.Broken as error:  # an import found the channel and wrote into it
            self._loop.remove_reader(self._channel)
            self._fault = f"broke its channel ({error}) and was killed"
            self.kill()

    def _hear(self, message: wire.Message) -> None:
        match message:
            case wire.Importing(source):
                self._importing = source
                self._expect(self._import_timeout)
            case wire.Ready(reports):
                found = _reports(reports)  # before anything else: whose import wrote rubbish must stay known
                self._importing = None
                self.ready = True
                self._settle()
                self._listener.forkserver_ready(self, found)
            case wire.Forked(serial, pid):
                self._answered()
                self._listener.forked(serial, pid, self._pidfd_of(pid))
                self._fds.popleft()
            case wire.NotForked(serial, why):
                self._answered()
                self._listener.not_forked(serial, why)
            case wire.Reaped(serial, status, peak) if status is None or 0 <= status <= MAX_STATUS:
                self._answered()
                self._listener.reaped(serial, status, peak)
            case _:
                raise wire.Broken("expected a message of the nursery")

    def _pidfd_of(self, pid: int) -> int:
        if not self._fds:
            raise wire.Broken("no descriptor came with a new worker: this process has no room for more")
        try:
            named = linux.pid_of(self._fds[0])
        except OSError as error:
            raise wire.Broken(f"can't tell whose descriptor came with process {pid}: {error.strerror}") from error
        if pid <= 1 or named not in (pid, REAPED):
            raise wire.Broken(f"the descriptor that came with process {pid} is not its own")
        return self._fds[0]

    def _said(self, stream: str, _job_id: int | None, lines: Sequence[str]) -> None:
        self._listener.forkserver_output(self, stream, lines)

    def _answered(self) -> None:
        self._unanswered -= 1
        self._settle()
        if self._unanswered:
            self._expect(TIMEOUT)

    def _expect(self, seconds: float) -> None:
        self._settle()
        self._timer = self._loop.call_later(STOPPED, self._let_go_on, seconds)

    def _let_go_on(self, seconds: float) -> None:
        """While it is stopped, no place is filled; one that is not hears nothing of this."""
        linux.send_signal(self._pidfd, signal.SIGCONT)
        self._timer = self._loop.call_later(max(0.0, seconds - STOPPED), self._too_late, seconds)

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self, seconds: float) -> None:
        self._late = f"gave no answer within {seconds:g}s and was killed"
        self.kill()

    # its end

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        code = self._process.wait()
        how = (
            self._late
            or self._fault
            or (f"killed by {linux.name_of_signal(-code)}" if code < 0 else f"exited with status {code}")
        )
        self.close()
        self._listener.forkserver_ended(self, how, self._blamed(how))

    def _blamed(self, how: str) -> SourceReport | None:
        if self._importing is None:
            return None
        if self._late:
            return SourceReport(self._importing, error=f"its import took longer than {self._import_timeout:g}s")
        return SourceReport(self._importing, error=f"its import ended the process: {how}")

    def close(self) -> None:
        self._settle()
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        for fd, stream in self._outputs:
            stream.finish()
            os.close(fd)
        for fd in (self._parent_death, self._pidfd, *self._fds):
            os.close(fd)
        for _data, ends in self._orders:
            if ends is not None:
                close_ends(ends)
        self._orders.clear()


def _start_process(
    passed: Sequence[int], stdout: int, stderr: int, environ: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    """It and a descriptor of it. Raises OSError, with nothing running."""
    process = subprocess.Popen(
        interpreter.command("supervisor.workers.forkserver.main", ",".join(map(str, passed))),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=passed,
        process_group=0,
        env=environ,
    )
    try:
        return process, os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise


def _nothing_runs() -> None:
    return None


def _never() -> bool:
    return False


def _hello(options: WorkerOptions, skip: Sequence[str]) -> wire.Hello:
    return wire.Hello(
        tuple(options.plugins),
        options.base,
        tuple(skip),
        options.start,
        options.heartbeat,
        dict(options.heartbeats),
        options.result_limit,
        options.owner,
    )


def _reports(told: Sequence[Mapping[str, Any]]) -> list[SourceReport]:
    try:
        return reports_from(told)
    except ValueError as error:
        raise wire.Broken(f"no reports of plugins: {error}") from None
