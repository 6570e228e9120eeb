"""The threads and descriptors that the imports of plugins leave, and that no forked worker can use: it lacks the threads, and shares
the descriptors with all other workers.
"""

from __future__ import annotations

import gc
import os
import stat
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from os import close, fork, read, write
from select import POLLIN, poll
from socket import AF_INET, AF_INET6, AF_UNIX, SO_ACCEPTCONN, SOCK_DGRAM, SOL_SOCKET, socket
from string import digits
from time import monotonic
from typing import NamedTuple

import orjson

from supervisor.workers.channels import CHUNK
from supervisor.workers.system import process_tree as proctree

THREADS_WARNING = (
    "its import started threads ({}). A forked worker does not have them, and a lock that one holds at the fork stays locked "
    "there: start threads on first use, or set workers.start to spawn"
)
OPENED_WARNING = (
    "its import left open: {}. Forked workers share it, so one can get what is meant for another: open it on first use or in "
    "supervisor_worker_started, or set workers.start to spawn"
)
MAX_NAMED = 5
PROBE_SECONDS = 1.0
UNNAMED = "unnamed"

_NO_DIGITS = str.maketrans("", "", digits)
_EXITING = 4  # PF_EXITING of the kernel: a thread that was joined may be there for a moment
_NOT_NEEDED = {"jemalloc_bg_thd", "polars-ooc-clea"}  # of libraries that work in a forked worker without these threads
_SQLITE = b"SQLite format 3\0"
_EPOLL = "anon_inode:[eventpoll]"
_KINDS = {
    _EPOLL: "event loop (epoll)",
    "anon_inode:inotify": "inotify watch",
    "anon_inode:[fanotify]": "fanotify watch",
    "anon_inode:[io_uring]": "io_uring",
    "/dev/nvidia-uvm": "GPU (/dev/nvidia-uvm)",
    "/dev/kfd": "GPU (/dev/kfd)",
}


class Effects(NamedTuple):
    threads: dict[int, str]  # id -> name
    descriptors: dict[int, str]  # number -> what it leads to, as in /proc/self/fd


class ImportEffects:
    """Compares what the kernel shows of this process before and after each import."""

    def __init__(self) -> None:
        self._last = _look()
        self._left: dict[str, Effects] = {}

    def note(self, source: str) -> None:
        """Take what is new since the last look as left by this source."""
        now, last = _look(), self._last
        threads = {tid: name for tid, name in now.threads.items() if tid not in last.threads}
        descriptors = {fd: link for fd, link in now.descriptors.items() if last.descriptors.get(fd) != link}
        if threads or descriptors:
            self._left[source] = Effects(threads, descriptors)
        self._last = now

    def warnings(self) -> dict[str, list[str]]:
        """Return warnings by source. A library may stop its threads before a fork, start them in the copy, or open its connections
        anew there: a copy of this process is forked, and shows what is not so."""
        if not self._left:
            return {}
        gc.collect()
        try:
            copy = _look_in_copy()
        except OSError:  # no workers can be forked either
            return {}
        now = _look()
        if copy is None:
            copy = Effects({}, now.descriptors)
        again = Counter(map(_without_digits, copy.threads.values()))
        found: dict[str, list[str]] = {}
        for source, (threads, descriptors) in self._left.items():
            lost = [
                name for tid, name in threads.items() if tid in now.threads and not _take(again, _without_digits(name))
            ]
            shared = [
                fd for fd, link in descriptors.items() if now.descriptors.get(fd) == copy.descriptors.get(fd) == link
            ]
            opened = [name for fd in shared if (name := _name(fd, descriptors[fd])) is not None]
            found[source] = [
                text.format(_listed(names))
                for text, names in ((THREADS_WARNING, lost), (OPENED_WARNING, opened))
                if names
            ]
        return found


def _look() -> Effects:
    return Effects(_threads(), dict(_descriptors()))


def _threads() -> dict[int, str]:
    """All but the main one, those of C libraries too, that are not about to end. Green threads are none: they survive a fork."""
    found = {}
    for entry in _entries("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{entry}/stat", "rb") as file:
            name, _, fields = file.read().partition(b" (")[2].rpartition(b") ")
            if not int(fields.split()[6]) & _EXITING:
                found[int(entry)] = name.decode(errors="replace")
    program = found.pop(os.getpid(), "")
    names = {getattr(thread, "native_id", None): thread.name for thread in threading.enumerate()}  # eventlet's has none
    return {
        tid: names.get(tid, UNNAMED if name == program else name)
        for tid, name in found.items()
        if name not in _NOT_NEEDED
    }


def _descriptors() -> Iterator[tuple[int, str]]:
    for entry in _entries("/proc/self/fd"):
        with suppress(OSError):
            yield int(entry), os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def _look_in_copy() -> Effects | None:
    """Return what a forked copy of this process has; None if it does not answer in time. Raises OSError."""
    read_end, write_end = os.pipe()
    try:
        pid = _fork_copy(write_end)
    finally:
        close(write_end)
    try:
        threads, descriptors = orjson.loads(_read_all(read_end, monotonic() + PROBE_SECONDS))
        return Effects(dict(threads), dict(descriptors))
    except ValueError:  # no answer, or an incomplete one
        return None
    finally:
        close(read_end)
        proctree.end(lambda: [each for each in proctree.children(os.getpid()) if each == pid], PROBE_SECONDS)


def _fork_copy(pipe: int) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads
        pid = os.fork()
    if pid == 0:
        try:
            write(pipe, orjson.dumps([list(part.items()) for part in _look()]))
        finally:
            os._exit(0)
    return pid


def _read_all(pipe: int, deadline: float) -> bytes:
    waiting = poll()
    waiting.register(pipe, POLLIN)
    data = b""
    while waiting.poll(max(0.0, deadline - monotonic()) * 1000) and (more := read(pipe, CHUNK)):
        data += more
    return data


def _without_digits(name: str) -> str:
    """Thread-1 (run) is Thread-2 (run) when it is started again."""
    return name.translate(_NO_DIGITS)


def _take(names: Counter[str], name: str) -> bool:
    """Return whether the name is there, and count it off."""
    names[name] -= 1
    return names[name] >= 0


def _listed(names: Sequence[str]) -> str:
    counted = [name if number == 1 else f"{number} × {name}" for name, number in Counter(names).items()]
    more = len(counted) - MAX_NAMED
    return ", ".join(counted[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


# --- names of descriptors: None for one that workers may share


def _name(fd: int, link: str) -> str | None:
    if link.startswith("socket:"):
        return None if _renewed_by_its_user(fd) else _name_of_socket(fd)
    if link in _KINDS:
        # A library that has replaced os.fork, as gevent does, makes its event loop anew in the copy.
        return None if link == _EPOLL and os.fork is not fork else _KINDS[link]
    return f"SQLite database {link}" if _is_sqlite(fd) else None


def _name_of_socket(fd: int) -> str | None:
    blocking = os.get_blocking(fd)
    with socket(fileno=os.dup(fd)) as shared:
        os.set_blocking(fd, blocking)  # socket.setdefaulttimeout may have changed it now
        if shared.type == SOCK_DGRAM and shared.family in (AF_INET, AF_INET6, AF_UNIX):
            return None  # a message is a whole, and most of these, as of syslog and statsd, get no answer
        try:
            peer = shared.getpeername()
        except OSError:
            return (
                "listening socket" if shared.getsockopt(SOL_SOCKET, SO_ACCEPTCONN) else "socket that is not connected"
            )
    if isinstance(peer, tuple):
        return f"connection to {peer[0]}:{peer[1]}"
    return f"connection to {os.fsdecode(peer)}" if peer else "end of a socket pair"


def _renewed_by_its_user(fd: int) -> bool:
    """Whether the object that holds the socket knows its process, as in redis-py: it connects anew when it is used in another."""
    used = [each for each in gc.get_objects() if issubclass(type(each), socket) and each.fileno() == fd]
    for owner in gc.get_referrers(*used):
        with suppress(Exception):
            fields = owner if type(owner) is dict else object.__getattribute__(owner, "__dict__")
            if fields.get("pid") == os.getpid():
                return True
    return False


def _is_sqlite(fd: int) -> bool:
    """SQLite forbids to use a connection in a forked copy."""
    with suppress(OSError):
        return stat.S_ISREG(os.fstat(fd).st_mode) and os.pread(fd, len(_SQLITE), 0) == _SQLITE
    return False
