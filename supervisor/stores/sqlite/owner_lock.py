"""`<db>.notify/<owner>.lock`: the lock by which others know whether an owner of a SQLite store is gone.

It is taken by flock on an open description that the owner's forkserver and workers inherit: if another process can take the
lock, all of them have exited. The owner's socket is in the same folder: see `notifier`.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from supervisor.errors import StoreError

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW

_all: WeakSet[OwnerLock] = WeakSet()


def _release_in_forked_copy() -> None:
    """Release the locks in a copy of the supervisor that a plugin has forked: it is not one of the owner's processes."""
    for lock in _all:
        lock.release()


os.register_at_fork(after_in_child=_release_in_forked_copy)


class OwnerLock:
    """The lock of one owner, and the state of the locks of all others."""

    def __init__(self, folder: Path) -> None:
        _all.add(self)
        self.folder = folder
        self._fd: int | None = None

    def take(self, owner: str) -> int:
        """Return the descriptor of the lock, which this process holds from now on. Raises OSError."""
        while self._fd is None:
            self._make_folder()
            try:
                fd = os.open(self._path(owner), _FLAGS | os.O_CREAT, 0o600)
            except FileNotFoundError:  # the last of the other owners left just now and removed the folder
                continue
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                self._fd = fd
            else:
                os.close(fd)  # another process took it for the lock of an owner that is gone, and removed it
        return self._fd

    def release(self) -> None:
        """Close this process's descriptor of the lock. Children that inherited it still hold the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def is_gone(self, owner: str) -> bool:
        """Return whether every process that held this owner's lock has provably exited. A file that is missing, or can't be
        opened, proves nothing."""
        try:
            fd = os.open(self._path(owner), _FLAGS)
        except OSError:
            return False
        try:
            # A new open description conflicts with the owner's, even inside the same process.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def owners(self) -> frozenset[str]:
        """Return the owners that have a lock file here, including those that are gone."""
        try:
            return frozenset(path.stem for path in self.folder.iterdir() if path.suffix == ".lock")
        except OSError:
            return frozenset()

    def remove(self, owner: str) -> None:
        """Remove the files of an owner, and the folder with the last of them."""
        for kind in ("sock", "lock"):
            with suppress(OSError):
                self._path(owner, kind).unlink()
        with suppress(OSError):
            self.folder.rmdir()

    def remove_dead(self, owners: Iterable[str], on_gone: Callable[[str], None]) -> None:
        """Remove the files of those `owners` that are gone, each after a call of `on_gone`. Its lock is held meanwhile, so that no owner
        can join under it."""
        for owner in owners:
            with suppress(OSError):
                fd = os.open(self._path(owner), _FLAGS)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    on_gone(owner)
                    self.remove(owner)
                finally:
                    os.close(fd)

    def _path(self, owner: str, kind: str = "lock") -> Path:
        return self.folder / f"{owner}.{kind}"

    def _make_folder(self) -> None:
        """Make the folder if it is missing. Raises StoreError if a folder of another user is there."""
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        try:
            there = os.lstat(self.folder)
        except FileNotFoundError:  # removed again already: the caller tries again
            return
        owners = {os.geteuid(), 0, self.folder.parent.stat().st_uid}
        if not stat.S_ISDIR(there.st_mode) or there.st_uid not in owners:
            raise StoreError(
                f"{self.folder}: expected a folder of this user's, not one of user {there.st_uid}; remove it"
            )
