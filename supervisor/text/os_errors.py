"""Errors of the operating system as a user reads them: a limit is named, with the places where it is set."""

from __future__ import annotations

import errno
import os
import pwd
import resource
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

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


def user_shown(uid: int) -> str:
    name = _user_name(uid)
    return f"user {uid} ({name})" if name else f"user {uid}"


def not_writable(paths: Sequence[Path]) -> str:
    """Return why this process may not read and write files or folders, and what to do; the message names the first, or the folder in
    which that does not exist yet."""
    path = paths[0]
    if not os.path.lexists(path):
        path = path.parent
        paths = [path]
    try:
        status, disk = path.stat(), os.statvfs(path)
    except OSError as error:
        return f"{path}: {reason(error)}"
    if disk.f_flag & os.ST_RDONLY:
        return f"{path}: {os.strerror(errno.EROFS)}; mount it for writing (mount -o remount,rw), or use another disk"
    mode, me = stat.S_IMODE(status.st_mode), os.geteuid()
    change = "chmod u+rwX" if status.st_uid == me else f"chown {_user_name(me) or me}"
    return (
        f"{path}: {os.strerror(errno.EACCES)}; expected one that this user may read and write: it belongs to "
        f"{user_shown(status.st_uid)}, mode {mode:04o}, and this is {user_shown(me)}; run as its owner or as root: "
        f"{change} {shlex.join(map(str, paths))}"
    )


def _user_name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
