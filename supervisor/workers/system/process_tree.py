"""Read the tree of processes from /proc, and kill processes in it. Processes start and exit while it is read."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Collection
from time import monotonic, sleep
from typing import NamedTuple

from supervisor.workers.system import linux

ENDED = "ZX"
"""The states of a process that has exited."""

END_INTERVAL = 0.002  # seconds
SNAPSHOT_SECONDS = 0.050

_CPU_UNITS = os.sysconf("SC_CLK_TCK")  # in a second
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    state: str
    parent: int
    group: int
    cpu_seconds: float
    has_terminal: bool


class Exit(NamedTuple):
    """The exit of a child: `status` is that of waitpid, `peak` is bytes. Both are None if other code has waited for it."""

    status: int | None
    peak: int | None


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


def stat(pid: int) -> Stat | None:
    """Return the state of the process, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in brackets, may hold anything, brackets too.
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    cpu_seconds = (int(fields[11]) + int(fields[12])) / _CPU_UNITS
    return Stat(fields[0].decode(), int(fields[1]), int(fields[2]), cpu_seconds, fields[4] != b"0")


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
    """Return the resident memory; None once the process has exited: a zombie has no memory."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE or None
    except (OSError, IndexError):
        return None


def reap(pid: int) -> Exit | None:
    """Reap a child that has exited. Return None as long as that can't be done. It never waits: a tracer, such as a debugger, can
    withhold the exit of a process from its parent forever."""
    try:
        reaped, status, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:
        return Exit(None, None)
    return Exit(status, usage.ru_maxrss * 1024) if reaped else None


def kill(pid: int) -> bool:
    """Kill the process. Return False if it belongs to another user and can't be killed; True also if it has ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def kill_with_group(pid: int) -> bool:
    """Kill the process, and its group if it leads one. The return value is that of `kill`."""
    now = stat(pid)
    if now is not None and now.group == pid:
        linux.kill_group(pid)
    return kill(pid)


def end(find: Callable[[], Collection[int]], seconds: float) -> None:
    """Kill and reap the processes that `find` returns, until there are none, or none that can be killed, or the time is up: a
    process that waits for a disk or a network file system does not exit, even on SIGKILL."""
    deadline = monotonic() + seconds
    while kill_and_reap(find()) and monotonic() < deadline:
        sleep(END_INTERVAL)


def kill_and_reap(found: Collection[int]) -> bool:
    """Kill these processes, and reap those that have exited. Return whether any of them can be killed and is to be waited for."""
    killed = [kill_with_group(pid) for pid in found]
    for pid in found:
        reap(pid)
    return any(killed)


class Snapshot:
    """The descendants of a process, each held by a pidfd, so that no other process that gets the same pid is killed. There may be
    thousands: those that are not found in `SNAPSHOT_SECONDS`, parents before children, are left to their group, or become orphans."""

    def __init__(self, pid: int, now: Callable[[], float] = monotonic) -> None:
        self._pidfds: dict[int, int] = {}  # by pid
        deadline = now() + SNAPSHOT_SECONDS
        waiting = deque((pid,))
        while waiting:
            parent = waiting.popleft()
            for child in children(parent):
                if now() > deadline:
                    return
                if self._hold(child, parent):
                    waiting.append(child)

    def _hold(self, pid: int, parent: int) -> bool:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        found = stat(pid)
        if found is None or found.parent != parent:  # another process may have got the pid since it was read
            os.close(pidfd)
            return False
        self._pidfds[pid] = pidfd
        return True

    def kill(self) -> tuple[str, ...]:
        """Return the processes that can't be killed, since they belong to another user, as text for people."""
        survivors: list[str] = []
        for pid, pidfd in self._pidfds.items():
            if not linux.send_signal(pidfd, signal.SIGKILL):
                survivors.append(described(pid))
            os.close(pidfd)
        self._pidfds.clear()
        return tuple(survivors)
