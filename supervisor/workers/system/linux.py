"""Calls of Linux that Python lacks, or has only in part."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
import termios
from contextlib import suppress
from pathlib import Path
from select import POLLHUP, poll

from supervisor.config.control_groups import control_groups

STACK_SIGNAL = signal.SIGRTMAX - 3
INTERRUPT_SIGNAL = signal.SIGRTMAX - 4  # from a worker's heartbeat thread to its main thread
CANCEL_SIGNAL = signal.SIGRTMAX - 5  # from the supervisor to a worker
LOOP_SIGNAL = signal.SIGRTMAX - 6  # from a thread of an async worker to its main thread, whose event loop is blocked

_PR_SET_CHILD_SUBREAPER = 36
_OOM_SCORE = b"500"


def become_subreaper() -> None:
    """Become the parent of orphans among this process's descendants, in place of process 1."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def arm_parent_death(pipe: int) -> None:
    """Make the kernel send SIGKILL to this process's whole group when the last write end of the pipe closes.

    This needs no code of this process: it works while the GIL is held in C, and with every signal ignored or blocked. If no
    write end is left already, this call sends the SIGKILL itself.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if hung_up(pipe):
        os.killpg(os.getpgrp(), signal.SIGKILL)


def disarm_parent_death(pipe: int) -> None:
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) & ~os.O_ASYNC)


def bytes_waiting(pipe: int) -> int:
    size = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    return int.from_bytes(size, sys.byteorder)


def hung_up(pipe: int) -> bool:
    """Return whether no write end of the pipe is left."""
    waiting = poll()
    waiting.register(pipe, POLLHUP)
    return bool(waiting.poll(0))


def exists(pidfd: int) -> bool:
    """Return whether the process runs or is a zombie, so that no other process can have its pid."""
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def pid_of(pidfd: int) -> int | None:
    """Return the pid of the process: -1 if it has been reaped; None if the descriptor is no pidfd."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"Pid:")), None)


def send_signal(pidfd: int, number: int) -> bool:
    """Signal a process that may have exited. Return False if it belongs to another user, and may not be signalled."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def kill_group(pid: int) -> None:
    """Send SIGKILL to the group that `pid` leads. Raises ValueError for this process's own group, and for 0 and 1."""
    if pid <= 1 or pid == os.getpgrp():
        raise ValueError(f"refusing to kill process group {pid}")
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def prefer_as_oom_victim() -> None:
    """Make the kernel prefer this process to the supervisor if memory runs out and it has to kill one. Errors are ignored."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:
        file.write(_OOM_SCORE)


def oom_kills(root: str = "") -> int | None:
    """Return how many processes the kernel has killed for memory: in this process's control group if that is counted, else on the
    whole machine since its boot; None if neither is counted. `root` is a prefix of all paths, for tests."""
    for path in (*_memory_counters(root), f"{root}/proc/vmstat"):
        try:
            with open(path, "rb") as file:
                for line in file:
                    if line.startswith(b"oom_kill "):
                        return int(line.split()[1])
        except (OSError, ValueError):
            continue
    return None


def oom_group(root: str = "") -> str | None:
    """Return the setting by which the kernel, if memory runs out, kills all processes of this process's control group, or of one
    above it, instead of one process; None if none is set. `root` is as above."""
    for group in [Path(path) for controllers, path in control_groups(root) if not controllers]:
        for each in (group, *group.parents):
            setting = Path(f"{root}/sys/fs/cgroup{each}/memory.oom.group")
            with suppress(OSError):
                if setting.read_bytes().strip() == b"1":
                    return str(setting)
    return None


def _memory_counters(root: str) -> list[str]:
    """Return the files with the counters of this process's control groups, of version 1 and 2."""
    mounts = f"{root}/sys/fs/cgroup"
    return [
        f"{mounts}/memory{path}/memory.oom_control" if controllers else f"{mounts}{path}/memory.events"
        for controllers, path in control_groups(root)
        if not controllers or "memory" in controllers
    ]
