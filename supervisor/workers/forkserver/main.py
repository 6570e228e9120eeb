"""The forkserver: a fresh interpreter that imports the plugins once, then forks workers from itself on order.

It also kills the programs that ended workers leave. When the supervisor exits, the forkserver kills all that is left and exits.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import socket
import sys
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from logging import WARNING
from os import read
from pathlib import Path
from select import POLLIN, poll
from signal import signal as set_handler
from time import monotonic
from types import FrameType
from typing import Any, NoReturn

from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.primitives import kept_primitives
from supervisor.plugins.reports import SourceReport
from supervisor.text.os_errors import reason
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import CHUNK, WorkerEnds, close_all
from supervisor.workers.child import exit_functions
from supervisor.workers.child import main as worker
from supervisor.workers.child.process_state import quiet_signals
from supervisor.workers.child.record_handler import RecordHandler
from supervisor.workers.child.stdio import flush_streams, hold_standard_fds, install_streams
from supervisor.workers.forkserver.import_effects import ImportEffects
from supervisor.workers.forkserver.payload_checks import misfits, schedule_misfits
from supervisor.workers.forkserver.spawn import spawn
from supervisor.workers.system import interpreter, linux, marks
from supervisor.workers.system import process_tree as proctree
from supervisor.workers.system.orphans import Orphans, end_children, end_programs_of
from supervisor.workers.system.title import set_title

EXIT_TIMEOUT = 2.0  # seconds
REAP_TIMEOUT = 0.25  # seconds: a tracer learns of the exit of a worker before this process does
FDS = len(WorkerEnds._fields)
STDERR = 2
UNMARKED = (
    "the limit of file locks (ulimit -H -x) is too low to mark programs: those that a job leaves are killed when the supervisor "
    "exits, and not with their worker"
)


def main(passed: str) -> None:
    """Run the forkserver. `passed` has the numbers of two or three descriptors: a socket to the supervisor; the parent-death pipe,
    of which only the supervisor has the write end; and the owner's lock, held as long as this process or a worker has it open.
    """
    fd, parent_death, *owner = map(int, passed.split(","))
    for each in (fd, parent_death, *owner):
        os.set_inheritable(each, False)
    linux.arm_parent_death(parent_death)
    set_title("forkserver")
    install_streams()
    status = 1
    channel = socket.socket(fileno=fd)
    control = Control(channel)
    try:
        _run(control, parent_death, owner)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        channel.detach()  # it is closed by the end of this process alone: a forkserver without a channel is killed
        interpreter.end_within(EXIT_TIMEOUT, status, control.report)


class Control:
    """The socket to the supervisor, for messages and the descriptors that come with them. `report` logs a text at the end."""

    def __init__(self, channel: socket.socket) -> None:
        self.report: Callable[[str], None] = interpreter.write_line
        self._channel = channel
        self._lines = wire.Lines()
        self._ends: deque[list[int]] = deque()  # as they came; fewer than `FDS` if not all could be received

    def fileno(self) -> int:
        return self._channel.fileno()

    def send(self, message: wire.Message, *fds: int) -> None:
        data = wire.encode(message)
        if fds:
            socket.send_fds(self._channel, [data], fds)
        else:
            self._channel.sendall(data)

    def receive(self) -> list[wire.Message] | None:
        """Return the messages of one read; None when the supervisor has exited."""
        try:
            data, fds, flags, _address = socket.recv_fds(self._channel, CHUNK, FDS)
        except ConnectionError:
            return None
        for fd in fds:
            os.set_inheritable(fd, False)
        if fds or flags & socket.MSG_CTRUNC:
            self._ends.append(fds)
        return [wire.decode(line) for line in self._lines.split(data)] if data else None

    def receive_hello(self) -> wire.Hello | None:
        """Return the first message, which may take many reads, since it grows with the configuration."""
        while (messages := self.receive()) == []:
            pass
        return messages[0] if messages is not None and isinstance(messages[0], wire.Hello) else None

    def take_ends(self) -> WorkerEnds:
        """Return the ends of the next order. Raises OSError, with nothing left open, if not all could be received."""
        fds = self._ends.popleft()
        if len(fds) < FDS:
            close_all(fds)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return WorkerEnds(*fds)

    def close(self) -> None:
        """Close, in a forked worker, the descriptors of the forkserver and of other workers."""
        self._channel.close()
        for fds in self._ends:
            close_all(fds)


def _run(control: Control, parent_death: int, owner: Sequence[int]) -> None:
    hello = control.receive_hello()
    if hello is None:
        return
    linux.become_subreaper()
    records = RecordHandler(hello.log_level, STDERR, hello.token)
    records.install()
    control.report = partial(records.report, WARNING)
    if not marks.set_mark(hello.owner, os.getpid()):
        records.report(WARNING, UNMARKED)
    quiet_signals()
    atexit.register(end_children)  # after the exit functions of plugins, which may need their programs
    plugins = PluginManager(records.report_hook)
    spawns = hello.start == "spawn"
    with kept_primitives() if spawns else nullcontext():  # forked workers need what a plugin replaces
        effects = _import_plugins(control, hello, plugins)
    # An import may have set signals or streams, or closed descriptors 0-2, which no channel may get.
    hold_standard_fds()
    flush_streams()
    install_streams()
    quiet_signals()
    warned = {} if spawns else effects.warnings()
    forkserver = Forkserver(control, parent_death, owner, hello._replace(payloads=(), schedules={}), records, plugins)
    gc.collect()
    gc.freeze()  # collections ignore imported objects, so that their memory stays shared after a fork
    linux.disarm_parent_death(parent_death)
    reports = [_fields_of(report, warned.get(report.source, ())) for report in plugins.reports]
    forkserver.run(wire.Ready(reports, misfits(plugins, hello.payloads), schedule_misfits(plugins, hello.schedules)))


def _import_plugins(control: Control, hello: wire.Hello, plugins: PluginManager) -> ImportEffects:
    effects = ImportEffects()
    for source in discover(hello.plugins, Path(hello.base)):
        if source.name in hello.skip:
            continue
        control.send(wire.Importing(source.name))
        plugins.load(source)
        effects.note(source.name)
    control.send(wire.Importing(""))  # no import is to blame for what follows
    return effects


class Forkserver:
    """Forks and reaps workers on order."""

    def __init__(
        self, control: Control, parent_death: int, owner: Sequence[int], hello: wire.Hello, records: RecordHandler,
        plugins: PluginManager,
    ) -> None:  # fmt: skip
        self._control = control
        self._parent_death = parent_death
        self._owner = owner
        self._hello = hello
        self._records = records
        self._plugins = plugins
        self._workers: dict[int, int] = {}  # serial number -> pid, until reaped
        self._exited: dict[int, float] = {}  # those to be reaped -> when to answer without their status
        self._orphans = Orphans(hello.owner)
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        set_handler(signal.SIGCHLD, _wake_up)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def run(self, ready: wire.Ready) -> None:
        stopped = False
        with suppress(ConnectionError):
            self._control.send(ready)
            stopped = self._serve()
        if not stopped:
            end_children()
            end_programs_of(self._hello.owner)

    def _serve(self) -> bool:
        """Return whether the supervisor has ordered the end; if not, it has exited, and nothing of it may run on."""
        waiting = poll()
        waiting.register(self._control.fileno(), POLLIN)
        waiting.register(self._woken, POLLIN)
        while True:
            ready = {fd for fd, _events in waiting.poll(self._milliseconds_to_reap())}
            if self._woken in ready:
                read(self._woken, CHUNK)
            if self._control.fileno() in ready:
                messages = self._control.receive()
                if messages is None:
                    return False
                for message in messages:
                    match message:
                        case wire.Fork():
                            self._start(message)
                        case wire.Reap(serial):
                            self._exited[serial] = monotonic() + REAP_TIMEOUT
                        case wire.Stop():
                            return True
            self._reap()
            self._orphans.sweep(self._workers.values())

    def _start(self, order: wire.Fork) -> None:
        try:
            pid = self._start_worker(order)
            pidfd = _open_pidfd(pid)
        except OSError as error:
            self._control.send(wire.NotForked(order.serial, reason(error)))
            return
        self._workers[order.serial] = pid
        try:
            self._control.send(wire.Forked(order.serial, pid), pidfd)
        finally:
            close_all((pidfd,))

    def _start_worker(self, order: wire.Fork) -> int:
        ends = self._control.take_ends()
        try:
            if self._hello.start == "spawn":
                failed = [report.source for report in self._plugins.reports if report.error is not None]
                return spawn(self._hello, order, ends, self._owner, failed)
            return self._fork(order, ends)
        finally:
            close_all(ends)

    def _fork(self, order: wire.Fork, ends: WorkerEnds) -> int:
        flush_streams()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: Ready has reported them
            pid = os.fork()
        if pid == 0:
            self._become_worker(order, ends)
        with suppress(OSError):  # the worker has done so before, and may have exited
            os.setpgid(pid, pid)
        return pid

    def _become_worker(self, order: wire.Fork, ends: WorkerEnds) -> NoReturn:
        try:
            os.setpgid(0, 0)
            self._control.close()
            close_all((self._woken, self._wake, self._parent_death))
            exit_functions.leave_inherited()
            _reseed_numpy()
            worker.worker_main(self._hello, order, ends, self._records, lambda _report: self._plugins)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Reap workers that have exited, and answer. A zombie that a tracer withholds for too long becomes an orphan."""
        for serial, deadline in list(self._exited.items()):
            found = proctree.reap(self._workers[serial])
            if found is None and monotonic() < deadline:
                continue
            del self._exited[serial], self._workers[serial]
            self._control.send(wire.Reaped(serial, *(found or proctree.Exit(None, None))))

    def _milliseconds_to_reap(self) -> float | None:
        """Return None if no worker is to be reaped."""
        return max(0.0, min(self._exited.values()) - monotonic()) * 1000 + 1 if self._exited else None


def _reseed_numpy() -> None:
    """Seed numpy's global generator, as Python seeds `random` at a fork: otherwise all workers draw the same numbers."""
    random: Any = sys.modules.get("numpy.random")
    with suppress(Exception):  # a plugin may have put anything there
        if random is not None:
            random.seed()


def _open_pidfd(pid: int) -> int:
    """Return a pidfd of a new worker. If there is none, kill the worker, which nothing could watch, and raise OSError."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        proctree.end(lambda: [each for each in proctree.children(os.getpid()) if each == pid], REAP_TIMEOUT)
        raise


def _fields_of(report: SourceReport, warnings: Sequence[str]) -> dict[str, Any]:
    return asdict(replace(report, warnings=(*report.warnings, *warnings)))


def _wake_up(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the signal writes to the wakeup descriptor, but only if there is a handler."""
