"""The nursery: a fresh interpreter that imports the plugins once, then forks workers from itself when asked.

It also takes in what dead workers leave behind, and kills it. When the supervisor dies, it kills all that is left and exits.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import threading
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.reports import SourceReport
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import WorkerEnds, close_ends
from supervisor.workers.child import main as worker
from supervisor.workers.child.process_state import quiet_signals
from supervisor.workers.child.stdio import flush_streams, hold_standard_fds, install_streams
from supervisor.workers.forkserver.spawn import spawn
from supervisor.workers.system import interpreter, linux
from supervisor.workers.system.orphans import Orphans

CHUNK = 1 << 16
EXIT_TIMEOUT = 2.0  # seconds
FDS = len(WorkerEnds._fields)
THREADS = (
    "its import started threads ({}), which no forked worker has and whose locks it may find taken for ever: "
    "start them on first use, or set workers.start to spawn"
)


def main(passed: str) -> None:
    """`passed` has the numbers of two or three descriptors: a stream socket to the supervisor; a pipe whose write end it
    alone holds; and one that says that this owner lives, as long as it or a worker has it open.
    """
    control, parent_death, *owner = map(int, passed.split(","))
    for fd in (control, parent_death, *owner):
        os.set_inheritable(fd, False)
    linux.die_with_parent(parent_death)
    install_streams()
    status = 1
    try:
        Forkserver(socket.socket(fileno=control), parent_death, owner).run()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        interpreter.end_within(EXIT_TIMEOUT, status)


class Control:
    """Messages and the descriptors that come with them, over the socket to the supervisor."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lines = wire.Lines()
        self._ends: deque[list[int]] = deque()  # as they came; fewer than `FDS` if there was no room for all

    def fileno(self) -> int:
        return self._channel.fileno()

    def send(self, message: wire.Message, *fds: int) -> None:
        data = wire.encode(message)
        if fds:
            socket.send_fds(self._channel, [data], fds)
        else:
            self._channel.sendall(data)

    def receive(self) -> list[wire.Message] | None:
        """The messages of one read; None when the supervisor has gone."""
        try:
            data, fds, flags, _address = socket.recv_fds(self._channel, CHUNK, FDS)
        except ConnectionError:
            return None
        for fd in fds:
            os.set_inheritable(fd, False)
        if fds or flags & socket.MSG_CTRUNC:
            self._ends.append(fds)
        return [wire.decode(line) for line in self._lines.split(data)] if data else None

    def take_ends(self) -> WorkerEnds:
        """Those that came with the next order. Raises OSError, with nothing left open, if there was no room for all."""
        fds = self._ends.popleft()
        if len(fds) < FDS:
            for fd in fds:
                os.close(fd)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return WorkerEnds(*fds)

    def close(self) -> None:
        """In a forked child: what belongs to the nursery or to a sibling."""
        self._channel.close()
        for fds in self._ends:
            for fd in fds:
                os.close(fd)


class Forkserver:
    def __init__(self, channel: socket.socket, parent_death: int, owner: Sequence[int]) -> None:
        self._control = Control(channel)
        self._parent_death = parent_death
        self._owner = owner
        self._plugins = PluginManager(worker.report_hook)
        self._living: dict[int, int] = {}  # serial -> pid, until reaped
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        hello = self._hear_hello()
        if hello is None:
            return
        self._hello = hello
        linux.become_subreaper()
        quiet_signals()
        ready = self._import_plugins(hello)
        self._listen_for_children()
        self._orphans = Orphans(hello.owner)
        worker.freeze_memory()
        linux.outlive_parent(self._parent_death)
        try:
            self._control.send(ready)
            self._serve()
        except ConnectionError:
            pass
        self._orphans.end_all()

    def _hear_hello(self) -> wire.Hello | None:
        """It may come in many reads: it grows with the config."""
        while (messages := self._control.receive()) == []:
            pass
        if messages is None or not isinstance(messages[0], wire.Hello):
            return None
        return messages[0]

    def _import_plugins(self, hello: wire.Hello) -> wire.Ready:
        threads: dict[str, str] = {}
        for source in discover(hello.plugins, Path(hello.base)):
            if source.name in hello.skip:
                continue
            self._control.send(wire.Importing(source.name))
            before = set(threading.enumerate())
            self._plugins.load(source)
            if started := [thread.name for thread in threading.enumerate() if thread not in before]:
                threads[source.name] = THREADS.format(", ".join(started))
        return wire.Ready([_told(report, threads.get(report.source)) for report in self._plugins.reports])

    def _listen_for_children(self) -> None:
        """After the imports, which may have set signals or streams of their own, or closed what no channel may take
        the place of."""
        hold_standard_fds()
        flush_streams()
        install_streams()
        quiet_signals()
        signal.signal(signal.SIGCHLD, _wake_up)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while True:
            ready = {fd for fd, _events in poll.poll()}
            if self._woken in ready:
                os.read(self._woken, CHUNK)
            if self._control.fileno() in ready:
                messages = self._control.receive()
                if messages is None:
                    return
                for message in messages:
                    if isinstance(message, wire.Stop):
                        self._orphans.end_mine()
                        return
                    self._obey(message)
            self._orphans.sweep(self._living.values())

    def _obey(self, message: wire.Message) -> None:
        match message:
            case wire.Fork():
                self._start(message)
            case wire.Reap(serial):
                self._reap(serial)

    def _start(self, order: wire.Fork) -> None:
        try:
            pid = self._start_worker(order)
            pidfd = _hold(pid)
        except OSError as error:
            self._control.send(wire.NotForked(order.serial, f"{error.strerror}"))
            return
        self._living[order.serial] = pid
        try:
            self._control.send(wire.Forked(order.serial, pid), pidfd)
        finally:
            os.close(pidfd)

    def _start_worker(self, order: wire.Fork) -> int:
        ends = self._control.take_ends()
        try:
            if self._hello.start == "spawn":
                told = [report.source for report in self._plugins.reports if report.error is not None]
                return spawn(self._setup(order), ends, self._hello, self._owner, told)
            return self._fork(order, ends)
        finally:
            close_ends(ends)

    def _setup(self, order: wire.Fork) -> worker.WorkerSetup:
        hello = self._hello
        return worker.WorkerSetup(
            order.number, hello.owner, order.token, hello.heartbeat, hello.heartbeats, hello.result_limit
        )

    def _fork(self, order: wire.Fork, ends: WorkerEnds) -> int:
        flush_streams()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: they were told with Ready
            pid = os.fork()
        if pid == 0:
            self._become_worker(order, ends)
        try:
            os.setpgid(pid, pid)
        except OSError:  # it was quicker, and may have gone
            pass
        return pid

    def _become_worker(self, order: wire.Fork, ends: WorkerEnds) -> NoReturn:
        try:
            os.setpgid(0, 0)
            self._control.close()
            for fd in (self._woken, self._wake, self._parent_death):
                os.close(fd)
            worker.worker_main(self._setup(order), ends, lambda: self._plugins)
        finally:
            os._exit(1)

    def _reap(self, serial: int) -> None:
        pid = self._living.pop(serial)
        try:
            _pid, status, usage = os.wait4(pid, 0)
        except ChildProcessError:
            self._control.send(wire.Reaped(serial, None, None))
        else:
            self._control.send(wire.Reaped(serial, status, usage.ru_maxrss * 1024))


def _hold(pid: int) -> int:
    """A descriptor of this new worker. Raises OSError, with the worker ended: nobody could watch it."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _told(report: SourceReport, warning: str | None) -> dict[str, Any]:
    warnings = report.warnings if warning is None else (*report.warnings, warning)
    return asdict(replace(report, warnings=warnings))


def _wake_up(_number: int, _frame: FrameType | None) -> None:
    """The wakeup descriptor does the work."""
