"""Errors of the operating system as a user reads them: a limit is named, with the places where it is set."""

from __future__ import annotations

import errno
import os
import resource

PROCESS_LIMITS = "ulimit -u, TasksMax= of a systemd unit, the pids limit of a container"
DESCRIPTOR_LIMITS = "ulimit -n, LimitNOFILE= of a systemd unit, --ulimit nofile= of a container"


def reason(error: OSError) -> str:
    """Return the text of an error at the start of a process, or at the opening of its channels."""
    text = os.strerror(error.errno) if error.errno else str(error)
    match error.errno:
        case errno.EMFILE:
            soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"{text}: this process may have {soft} descriptors ({DESCRIPTOR_LIMITS})"
        case errno.ENFILE:
            return f"{text}: the limit of the machine is fs.file-max"
        case errno.EAGAIN:
            return f"{text}: {no_more_processes()}"
    return text


def no_more_processes() -> str:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = "" if soft == resource.RLIM_INFINITY else f" of {soft}"
    return f"the limit{most} on processes and threads is reached ({PROCESS_LIMITS})"


def no_more_threads() -> str:
    """Return why no thread can be started: Python does not give the reason."""
    return f"{no_more_processes()}, or no memory is left for its stack"
