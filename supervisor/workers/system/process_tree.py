"""The tree of processes, from /proc, and how processes in it are killed. Processes come and go while it is read."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator
from time import monotonic, sleep
from typing import NamedTuple

from supervisor.workers.system import linux

MARK = "SUPERVISOR_WORKER"
"""The environment variable that names the worker of a program: `owner:pid`."""
ENDED = "ZX"
"""The states of a process that has exited."""

END_INTERVAL = 0.002  # seconds

_CPU_UNITS = os.sysconf("SC_CLK_TCK")  # in a second
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    state: str
    parent: int
    group: int
    cpu_seconds: float


class Exit(NamedTuple):
    """How a child exited: `status` is as from waitpid, `peak` is bytes. Both are None if another caller has waited for it."""

    status: int | None
    peak: int | None


class Mark(NamedTuple):
    """The worker that started a program."""

    owner: str
    pid: int


def children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """Return the children, their children and so on; parents come before their children."""
    found: list[int] = []
    waiting = children(pid)
    while waiting:
        found.extend(waiting)
        waiting = [grandchild for child in waiting for grandchild in children(child)]
    return found


def stat(pid: int) -> Stat | None:
    """Return None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in brackets, may hold anything, brackets too.
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return Stat(fields[0].decode(), int(fields[1]), int(fields[2]), (int(fields[11]) + int(fields[12])) / _CPU_UNITS)


def is_alive(pid: int) -> bool:
    found = stat(pid)
    return found is not None and found.state not in ENDED


def described(pid: int) -> str:
    """Return the process, its program and its user as text for people."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if line.startswith(("Name:", "Uid:")))
        return f"process {pid} ({fields['Name']}) of user {fields['Uid'].split()[1]}"
    except (OSError, KeyError):
        return f"process {pid}"


def resident_bytes(pid: int) -> int | None:
    """Return None once the process has exited: a zombie has no memory."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE or None
    except (OSError, IndexError):
        return None


def mark(pid: int) -> Mark | None:
    """Return None for a program that no worker has started."""
    prefix = f"{MARK}=".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            values = [entry[len(prefix) :] for entry in file.read().split(b"\0") if entry.startswith(prefix)]
    except OSError:
        return None
    owner, _, worker = values[0].decode(errors="replace").rpartition(":") if values else ("", "", "")
    return Mark(owner, int(worker)) if worker.isdecimal() else None


def marked(owner: str) -> Iterator[int]:
    """Yield the programs that workers of this owner have started, wherever they are; none if no descriptor is left to look."""
    try:
        entries = os.listdir("/proc")  # noqa: PTH208
    except OSError:
        return
    for entry in entries:
        if entry.isdecimal():
            found = mark(int(entry))
            if found is not None and found.owner == owner:
                yield int(entry)


def reap(pid: int) -> Exit | None:
    """Reap a child that has exited. Return None as long as that can't be done. It never waits: a tracer, such as a debugger, can
    withhold the exit of a process from its parent without end."""
    try:
        reaped, status, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:
        return Exit(None, None)
    return Exit(status, usage.ru_maxrss * 1024) if reaped else None


def kill(pid: int) -> bool:
    """Return whether it is being killed, or has ended: a process of another user can't be killed."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def kill_with_group(pid: int) -> bool:
    """Kill the process, and its group if it leads one. Return as `kill`."""
    now = stat(pid)
    if now is not None and now.group == pid:
        linux.kill_group(pid)
    return kill(pid)


def end(find: Callable[[], Collection[int]], seconds: float) -> None:
    """Kill and reap the children that `find` returns, until it returns none, or none that can be killed, or the time is up: one that
    waits for a disk or a network file system does not exit, even on SIGKILL."""
    deadline = monotonic() + seconds
    while found := find():
        killed = [kill_with_group(pid) for pid in found]
        for pid in found:
            reap(pid)
        if not any(killed) or monotonic() >= deadline:
            return
        sleep(END_INTERVAL)


class Snapshot:
    """The descendants of a process, each held by a pidfd, so that no other process that gets the same pid is killed."""

    def __init__(self, pid: int) -> None:
        self._pidfds: dict[int, int] = {}  # by pid
        found = descendants(pid)
        above = {pid, *found}
        for descendant in found:
            try:
                pidfd = os.pidfd_open(descendant)
            except OSError:
                continue
            # Another process may have got the pid since it was read.
            now = stat(descendant)
            if now is not None and now.parent in above:
                self._pidfds[descendant] = pidfd
            else:
                os.close(pidfd)

    def kill(self) -> tuple[str, ...]:
        """Return the processes that can't be killed, since they belong to another user, as text for people."""
        survivors: list[str] = []
        for pid, pidfd in self._pidfds.items():
            if not linux.send_signal(pidfd, signal.SIGKILL):
                survivors.append(described(pid))
            os.close(pidfd)
        self._pidfds.clear()
        return tuple(survivors)
