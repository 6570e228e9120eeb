"""The calls of Linux that a supervisor can't do without: old kernels lack some, and sandboxes refuse some."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

from supervisor.errors import SystemRefused
from supervisor.workers.system import linux

REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL)
NO_PIDFD = -1


def require() -> None:
    """Raises SystemRefused, which names everything that is missing. This process becomes a subreaper."""
    if refused := [f"{name} ({why})" for name, call in _CALLS.items() if (why := _refusal(call))]:
        raise SystemRefused(
            f"this system refuses what a supervisor needs: {', '.join(refused)}; expected Linux 5.3 or newer, and in a container a "
            "seccomp profile that allows these calls: update the container runtime, or run it with another profile"
        )
    if not _has_own_proc():
        raise SystemRefused(
            "/proc does not show this process, so a supervisor could not watch its workers; expected the proc file system of this "
            "pid namespace: mount -t proc proc /proc"
        )


def _refusal(call: Callable[[], None]) -> str | None:
    try:
        call()
    except AttributeError:
        return "this Python was built without it"
    except OSError as error:  # of another kind if no descriptor is left, for example
        return os.strerror(error.errno) if error.errno in REFUSED else None
    return None


def _pidfd_open() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _pidfd_send_signal() -> None:
    try:
        signal.pidfd_send_signal(NO_PIDFD, 0)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise


_CALLS: dict[str, Callable[[], None]] = {
    "prctl(PR_SET_CHILD_SUBREAPER)": linux.become_subreaper,
    "pidfd_open": _pidfd_open,
    "pidfd_send_signal": _pidfd_send_signal,
}


def _has_own_proc() -> bool:
    try:
        return Path("/proc/self").readlink().name == str(os.getpid())
    except OSError:
        return False
