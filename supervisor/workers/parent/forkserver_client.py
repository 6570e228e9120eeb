"""The supervisor's side of one forkserver process: its start, its orders and answers, its exit."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from logging import WARNING
from socket import MSG_CTRUNC, recv_fds, send_fds, socket
from typing import Any, NamedTuple, Protocol

from supervisor.plugins.reports import SourceReport, reports_from
from supervisor.text.os_errors import reason
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import CHUNK, Opened, WorkerEnds, close_all
from supervisor.workers.forkserver import main as forkserver
from supervisor.workers.interface import Timeouts, WorkerOptions, WorkerRecord, Written
from supervisor.workers.parent.output_reader import OutputReader
from supervisor.workers.system import descriptors, interpreter, linux, stuck
from supervisor.workers.system import process_tree as proctree

MAX_LINE_BYTES = 1 << 26  # the errors of all plugins, with their tracebacks, are one line
MAX_STATUS = 0xFFFF  # as from waitpid
MAX_FDS = 64  # that came before their lines
REAPED = -1
REAP_TIMEOUT = 1.0  # seconds
RESEND_AFTER = 0.02  # seconds
CONTINUE_AFTER = 0.05  # seconds without an answer: a signal may have stopped it


class ForkserverListener(Protocol):
    """The receiver of a forkserver's answers; `forkserver_ended` is the last. It may raise Broken at an answer that it did not expect."""

    def forkserver_ready(self, forkserver: ForkserverClient, reports: list[SourceReport]) -> None: ...
    def forked(self, serial: int, pid: int, pidfd: int) -> None: ...
    def not_forked(self, serial: int, why: str) -> None: ...
    def lost(self, serial: int, pid: int, why: str) -> None:
        """This worker was forked, and can't be watched for lack of a descriptor."""

    def reaped(self, serial: int, status: int | None, peak: int | None) -> None: ...
    def forkserver_output(self, written: Written) -> None: ...
    def forkserver_ended(self, forkserver: ForkserverClient, how: str, blamed: SourceReport | None) -> None:
        """The forkserver has exited. `blamed` is the source whose import ended it, if it was importing."""


class ForkserverClient:
    """One forkserver. Orders may be given at any time; they are sent as soon as the socket takes them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: WorkerOptions, listener: ForkserverListener, skip: Sequence[str],
        timeouts: Timeouts,
    ) -> None:  # fmt: skip
        """Start the forkserver. `skip` names sources not to import. Raises OSError, with nothing left open or running."""
        self.ready = False
        self.misfits: Sequence[Sequence[Any]] = ()
        self.schedule_misfits: Sequence[Sequence[str]] = ()
        self.started = loop.time()
        self._loop = loop
        self._listener = listener
        self._import_timeout = options.import_timeout
        self._answer_timeout = timeouts.forkserver_answer
        self._kill_timeout = timeouts.kill
        self._importing: str | None = None
        self._fault: str | None = None  # why it is being killed
        self._late = False
        self._timer: asyncio.TimerHandle | None = None
        self._killing: asyncio.TimerHandle | None = None
        self._orders: deque[tuple[bytes, WorkerEnds | None]] = deque()
        self._unanswered = 0
        self._lines = wire.Lines()
        self._fds: deque[int | None] = deque()  # None: one that this process had no room for
        self._process, self._pidfd, channel, self._parent_death, stdout, stderr = _start(options)
        self.pid = self._process.pid
        self._channel = socket(fileno=channel)
        self._channel.setblocking(False)
        token = secrets.token_hex(16)
        self._outputs = {fd: self._output(fd, name, token) for fd, name in ((stdout, "stdout"), (stderr, "stderr"))}
        loop.add_reader(self._channel, self._readable)
        loop.add_reader(self._pidfd, self._ended)
        self._order(_hello(options, skip, token))
        self._expect(self._import_timeout)

    def _output(self, fd: int, name: str, token: str) -> OutputReader:
        os.set_blocking(fd, False)
        return OutputReader(self._loop, fd, name, token.encode(), None, self._listener.forkserver_output)

    # orders

    def ask(self, order: wire.Fork | wire.Reap, ends: WorkerEnds | None = None) -> None:
        """Send an order that will be answered. `ends` are closed once they are sent, or can't be sent."""
        self._unanswered += 1
        if self._unanswered == 1:
            self._expect(self._answer_timeout)
        self._order(order, ends)

    def stop(self) -> None:
        """Make the forkserver exit. While it imports plugins it reads no orders and has no workers: then it is killed."""
        if self.ready:
            self._order(wire.Stop())
        else:
            self.kill()

    def kill(self) -> None:
        """Kill the forkserver: with all its descendants while it imports, alone once it may have workers."""
        below = None if self.ready else proctree.Snapshot(self.pid)
        linux.send_signal(self._pidfd, signal.SIGKILL)
        if below is not None:
            linux.kill_group(self.pid)
            for survivor in below.kill():
                line = f"{survivor} goes on, since the supervisor may not kill it"
                self._listener.forkserver_output(WorkerRecord(WARNING, "WARNING", "supervisor", line))
        _cancel(self._killing)
        self._killing = self._loop.call_later(self._kill_timeout, self._outlived_kill)

    def release_in_copy(self) -> None:
        """Close, in a copy of this process, the descriptors that keep the forkserver running."""
        os.close(self._parent_death)
        self._channel.close()

    def _order(self, message: wire.Message, ends: WorkerEnds | None = None) -> None:
        self._orders.append((wire.encode(message), ends))
        if len(self._orders) == 1:
            self._send_orders()

    def _send_orders(self) -> None:
        if not self._orders:  # it has exited meanwhile
            return
        while self._orders:
            data, ends = self._orders[0]
            try:
                if ends is None:
                    sent = self._channel.send(data)
                else:
                    sent = send_fds(self._channel, [data], ends)
                    close_all(ends)
            except BlockingIOError:
                self._loop.add_writer(self._channel, self._send_orders)
                return
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:  # its user has too many descriptors on their way
                    self._loop.call_later(RESEND_AFTER, self._send_orders)
                return  # otherwise it has exited, and `_ended` follows
            self._orders.popleft()
            if sent < len(data):
                self._orders.appendleft((data[sent:], None))
        self._loop.remove_writer(self._channel)

    # answers

    def _readable(self) -> None:
        try:
            data, fds, flags, _address = recv_fds(self._channel, CHUNK, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds, flags = b"", [], 0
        if not data:
            self._loop.remove_reader(self._channel)
            self.kill()
            return
        for fd in fds:
            os.set_inheritable(fd, False)
        self._fds.extend(fds or ([None] if flags & MSG_CTRUNC else []))
        try:
            for line in self._lines.split(data):
                self._receive(wire.decode(line))
            if self._lines.pending > MAX_LINE_BYTES or len(self._fds) > MAX_FDS:
                raise wire.Broken("a line without end, or descriptors without lines")
        except wire.Broken as error:  # an import found the channel and wrote into it
            self._loop.remove_reader(self._channel)
            self._fault = self._fault or f"broke its channel ({error}) and was killed"
            self.kill()

    def _receive(self, message: wire.Message) -> None:
        match message:
            case wire.Importing(source):
                self._importing = source or None
                self._expect(self._import_timeout)
            case wire.Ready(reports, misfits, schedule_misfits):
                found = _reports(reports)  # before `_importing` is reset: the source that forged them must stay known
                self.schedule_misfits = _texts(schedule_misfits)
                self._importing = None
                self.ready, self.misfits = True, misfits
                self._expect_nothing()
                self._listener.forkserver_ready(self, found)
            case wire.Forked(serial, pid):
                self._answered()
                self._forked(serial, pid)
            case wire.NotForked(serial, why):
                self._answered()
                self._listener.not_forked(serial, why)
            case wire.Reaped(serial, status, peak) if status is None or 0 <= status <= MAX_STATUS:
                self._answered()
                self._listener.reaped(serial, status, peak)
            case _:
                raise wire.Broken("expected a message of the forkserver")

    def _forked(self, serial: int, pid: int) -> None:
        if not self._fds or pid <= 1:
            raise wire.Broken(f"no descriptor came with process {pid}")
        pidfd = self._fds[0]
        try:
            if pidfd is None:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            named = linux.pid_of(pidfd)
        except OSError as error:
            self._listener.lost(serial, pid, reason(error))
            close_all(filter(None, (pidfd,)))
        else:
            if named not in (pid, REAPED):
                raise wire.Broken(f"the descriptor that came with process {pid} is of another")
            self._listener.forked(serial, pid, pidfd)
        self._fds.popleft()

    # time limits

    def _answered(self) -> None:
        self._unanswered -= 1
        self._expect_nothing()
        if self._unanswered:
            self._expect(self._answer_timeout)

    def _expect(self, seconds: float) -> None:
        self._expect_nothing()
        self._timer = self._loop.call_later(CONTINUE_AFTER, self._continue, seconds)

    def _continue(self, seconds: float) -> None:
        """Continue a forkserver that a signal has stopped: it could replace no worker. If it runs, SIGCONT has no effect."""
        linux.send_signal(self._pidfd, signal.SIGCONT)
        self._timer = self._loop.call_later(max(0.0, seconds - CONTINUE_AFTER), self._too_late, seconds)

    def _expect_nothing(self) -> None:
        _cancel(self._timer)
        self._timer = None

    def _too_late(self, seconds: float) -> None:
        self._late = True
        self._fault = f"gave no answer within {seconds:g}s and was killed"
        self.kill()

    # its exit

    def _outlived_kill(self) -> None:
        """An import may wait in the kernel for ever: if the end of the process is certain, it is no longer waited for."""
        if stuck.has_exited(self._pidfd):  # the loop is about to find that
            return
        if stuck.will_do_no_more(self.pid):
            how = f"is stuck in the kernel ({stuck.where(self.pid)}) after SIGKILL"
            self._fault = how if self._fault is None else f"{self._fault}; it {how}"
            self._ended()
        else:
            self.kill()

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        code = self._process.poll()
        if code is None:  # a tracer withholds its exit, or it is stuck: the zombie is reaped with the orphans
            self._process.returncode = 0
            how = "exited, status unknown"
        else:
            how = f"killed by {linux.name_of_signal(-code)}" if code < 0 else f"exited with status {code}"
        self._close()
        self._listener.forkserver_ended(self, self._fault or how, self._blamed(self._fault or how))

    def _blamed(self, how: str) -> SourceReport | None:
        if self._importing is None:
            return None
        if self._late:
            return SourceReport(self._importing, error=f"its import took longer than {self._import_timeout:g}s")
        return SourceReport(self._importing, error=f"its import ended the process: {how}")

    def _close(self) -> None:
        self._expect_nothing()
        _cancel(self._killing)
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        for fd, output in self._outputs.items():
            output.finish()
            os.close(fd)
        close_all((self._parent_death, self._pidfd, *filter(None, self._fds)))
        for _data, ends in self._orders:
            if ends is not None:
                close_all(ends)
        self._orders.clear()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class _Started(NamedTuple):
    process: subprocess.Popen[bytes]
    pidfd: int
    channel: int
    parent_death: int
    stdout: int
    stderr: int


def _start(options: WorkerOptions) -> _Started:
    """Start the process and its channels. Raises OSError, with nothing left open or running."""
    opened, process = Opened(), None
    try:
        channel, theirs = opened.pair()
        their_parent_death, parent_death = opened.pipe()
        (stdout, their_stdout), (stderr, their_stderr) = opened.pipe(), opened.pipe()
        passed = [theirs, their_parent_death, *([] if options.owner_fd is None else [options.owner_fd])]
        process = subprocess.Popen(
            interpreter.command(forkserver.main, ",".join(map(str, passed))),
            stdin=subprocess.DEVNULL, stdout=their_stdout, stderr=their_stderr, pass_fds=passed,
            start_new_session=True,  # without a terminal, for the workers too: reading it fails, and nothing is written to it
            env={**os.environ, **options.variables},
        )  # fmt: skip
        if options.descriptor_limit is not None:
            descriptors.limit(process.pid, options.descriptor_limit)
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        if process is not None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # a tracer may withhold its exit
                process.wait(REAP_TIMEOUT)
        opened.close()
        raise
    close_all((theirs, their_parent_death, their_stdout, their_stderr))
    return _Started(process, pidfd, channel, parent_death, stdout, stderr)


def _hello(options: WorkerOptions, skip: Sequence[str], token: str) -> wire.Hello:
    return wire.Hello(
        tuple(options.plugins), options.base, tuple(skip), options.start, options.heartbeat, dict(options.heartbeats),
        options.result_limit, options.owner, options.log_level, token, options.payloads,
        options.interruptions, options.resources, options.schedules,
    )  # fmt: skip


def _reports(fields: Sequence[Mapping[str, Any]]) -> list[SourceReport]:
    try:
        return reports_from(fields)
    except ValueError as error:
        raise wire.Broken(f"no reports of plugins: {error}") from None


def _texts(rows: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    """Return the rows if each has three texts."""
    if any(type(row) is not list or [*map(type, row)] != [str, str, str] for row in rows):
        raise wire.Broken("no misfits of schedules: expected three texts for each")
    return rows
