"""`<db>.bells/`: how a client wakes the supervisors of a SQLite file, and how one sees that another is gone.

Each owner has `<owner>.sock`, a datagram socket that anybody may ring, and `<owner>.lock`, held by flock through an open
description that its nursery and workers inherit: if the lock can be taken, all of them are gone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

from supervisor.errors import StoreBroken, StoreError, StoreUnavailable

_MAX_ADDRESS_BYTES = 107
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_DEAD = (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTSOCK)


_all: WeakSet[Notifier] = WeakSet()


def _release_in_forked_copy() -> None:
    """A plugin has forked the supervisor: the copy must not pass for one of its processes."""
    for notifier in _all:
        notifier.release_lock()


os.register_at_fork(after_in_child=_release_in_forked_copy)


class Notifier:
    def __init__(self, folder: Path) -> None:
        _all.add(self)
        self._folder = folder
        self._socket: socket.socket | None = None
        self._lock: int | None = None
        self._owner: str | None = None

    def join(self, owner: str) -> int:
        """Hang up this owner's bell and hold its lock; gives the lock's descriptor. Raises StoreUnavailable if there is no room for
        them, StoreBroken if it may not."""
        if self._lock is None:
            self._owner = owner
            try:
                self._lock = self._locked(owner)
                self._socket = self._bind(owner)
            except OSError as error:
                self.release_lock()
                if isinstance(error, PermissionError):
                    expected = "expected a folder for this user to write to"
                    raise StoreBroken(f"{self._folder}: {error.strerror}; {expected}") from error
                raise StoreUnavailable(f"{self._folder}: {error.strerror}") from error
        return self._lock

    def leave(self) -> None:
        if self._owner is None:
            return
        if self._socket is not None:
            self._socket.close()
        self.remove(self._owner)
        self.release_lock()
        self._owner = self._socket = None

    def release_lock(self) -> None:
        """Of the lock, as far as this process holds it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def descriptor(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    def clear_notifications(self) -> None:
        """One ring: to find out that there is no other costs more than to be woken by it."""
        with suppress(BlockingIOError):
            if self._socket is not None:
                self._socket.recv(1)

    def notify(self) -> None:
        """Ring everybody else. A full bell has rung already; a bell that nobody listens to is taken down. Every enqueue waits
        for this, so it makes no Path of each."""
        folder, own = str(self._folder), f"{self._owner}.sock"
        try:
            notifier = [name for name in os.listdir(folder) if name.endswith(".sock") and name != own]  # noqa: PTH208
        except OSError:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for socket_path in notifier:
                _notify_one(sender, f"{folder}/{socket_path}")

    def is_gone(self, owner: str) -> bool:
        """Whether every process that held this owner's lock is provably dead. No file, or one we may not open, proves nothing."""
        try:
            fd = os.open(self._path(owner, "lock"), _OPEN)
        except OSError:
            return False
        try:
            # A fresh open description: it conflicts with the owner's, even inside this process.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def remove(self, owner: str) -> None:
        """Take down what an owner left behind, and the folder with the last of them."""
        for kind in ("sock", "lock"):
            with suppress(OSError):
                self._path(owner, kind).unlink()
        with suppress(OSError):
            self._folder.rmdir()

    def owners(self) -> frozenset[str]:
        """Whoever has a lock here, dead ones too."""
        try:
            return frozenset(path.stem for path in self._folder.iterdir() if path.suffix == ".lock")
        except OSError:
            return frozenset()

    def remove_dead(self, owners: Iterable[str]) -> None:
        """Take down what those of them left behind that are gone. Held meanwhile, the lock of one who joins can't be among it."""
        for owner in owners:
            with suppress(OSError):
                fd = os.open(self._path(owner, "lock"), _OPEN)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self.remove(owner)
                finally:
                    os.close(fd)

    def _path(self, owner: str, kind: str) -> Path:
        return self._folder / f"{owner}.{kind}"

    def _locked(self, owner: str) -> int:
        while True:
            self._make_folder()
            try:
                lock = os.open(self._path(owner, "lock"), _OPEN | os.O_CREAT, 0o600)
            except FileNotFoundError:  # the last of the others left just now and took the folder along
                continue
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return lock
            os.close(lock)  # somebody took it for one that was left behind

    def _make_folder(self) -> None:
        """Raises StoreError if somebody else has put theirs in its place."""
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        try:
            there = os.lstat(self._folder)
        except FileNotFoundError:  # gone again already: the caller comes back
            return
        owners = {os.geteuid(), 0, self._folder.parent.stat().st_uid}
        if not stat.S_ISDIR(there.st_mode) or there.st_uid not in owners:
            raise StoreError(
                f"{self._folder}: expected a folder of this user's, not one of user {there.st_uid}; remove it"
            )

    def _bind(self, owner: str) -> socket.socket | None:
        socket_path = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        socket_path.setblocking(False)
        path = self._path(owner, "sock")
        path.unlink(missing_ok=True)
        try:
            with _address(str(path)) as address:
                socket_path.bind(address)
        except OSError:
            # No /proc to shorten a long path with: the owner polls.
            socket_path.close()
            return None
        path.chmod(0o600)
        return socket_path


def _notify_one(sender: socket.socket, socket_path: str) -> None:
    try:
        with _address(socket_path) as address:
            sender.sendto(b"!", socket.MSG_DONTWAIT, address)
    except OSError as error:
        if error.errno in _DEAD:
            with suppress(OSError):
                Path(socket_path).unlink()


@contextmanager
def _address(socket_path: str) -> Iterator[str]:
    """A path to `bell` that fits into a socket address, however long its folder's own path is."""
    if len(os.fsencode(socket_path)) <= _MAX_ADDRESS_BYTES:
        yield socket_path
        return
    folder, name = os.path.split(socket_path)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
