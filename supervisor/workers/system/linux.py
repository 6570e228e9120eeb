"""The calls of Linux that Python has no name for, or only half a name."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import termios

STACK_SIGNAL = signal.SIGRTMAX - 3

_PR_SET_CHILD_SUBREAPER = 36
_OOM_SCORE = b"500"


def become_subreaper() -> None:
    """Orphans among this process's descendants land here, not at process 1."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(parent_death: int) -> None:
    """Have the kernel SIGKILL this process's whole group when the last write end of the pipe `life` closes.

    No code of ours runs for it: it works with the GIL held in C and with every signal ignored or blocked. A writer that
    had gone before this call is noticed by `hung_up`, so the process ends here.
    """
    fcntl.fcntl(parent_death, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(parent_death, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(parent_death, fcntl.F_SETFL, fcntl.fcntl(parent_death, fcntl.F_GETFL) | os.O_ASYNC)
    if hung_up(parent_death):
        os.killpg(os.getpgrp(), signal.SIGKILL)


def outlive_parent(parent_death: int) -> None:
    """Undo `die_with`."""
    fcntl.fcntl(parent_death, fcntl.F_SETFL, fcntl.fcntl(parent_death, fcntl.F_GETFL) & ~os.O_ASYNC)


def bytes_waiting(pipe: int) -> int:
    """How many bytes stand in the pipe."""
    size = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    return int.from_bytes(size, sys.byteorder)


def hung_up(pipe: int) -> bool:
    """Whether no write end of the pipe is left."""
    poll = select.poll()
    poll.register(pipe, select.POLLHUP)
    return bool(poll.poll(0))


def exists(pidfd: int) -> bool:
    """Whether the process is there, be it as a zombie: its number is still its own."""
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def pid_of(pidfd: int) -> int | None:
    """Of the process that a descriptor names: -1 if that has been reaped; None if it is no such descriptor."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"Pid:")), None)


def has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def send_signal(pidfd: int, number: int) -> None:
    """Signal a process that may have gone."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group(pid: int) -> None:
    """SIGKILL the group that `pid` leads; never our own, nor what is not a group of its own."""
    if pid <= 1 or pid == os.getpgrp():
        raise ValueError(f"refusing to kill process group {pid}")
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def prefer_as_oom_victim() -> None:
    """Best effort: rather this process than the supervisor."""
    try:
        file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(file, _OOM_SCORE)
    except OSError:
        pass
    finally:
        os.close(file)


def oom_kills(root: str = "") -> int | None:
    """How many processes the kernel has killed for memory: in our control group if that is told, else since boot on the
    whole machine; None if neither is.
    """
    for path in (*_memory_groups(root), f"{root}/proc/vmstat"):
        try:
            with open(path, "rb") as file:
                for line in file:
                    if line.startswith(b"oom_kill "):
                        return int(line.split()[1])
        except (OSError, ValueError):
            continue
    return None


def _memory_groups(root: str) -> list[str]:
    """Files that count for our control group, of either version of these."""
    try:
        with open(f"{root}/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            groups = [line.rstrip("\n").split(":", 2)[1:] for line in file]
    except OSError:
        return []
    mounts = f"{root}/sys/fs/cgroup"
    return [
        f"{mounts}/memory{path}/memory.oom_control" if of else f"{mounts}{path}/memory.events"
        for of, path in groups
        if of in ("", "memory")
    ]
