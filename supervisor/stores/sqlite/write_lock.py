"""A fair lock for the writers of one SQLite file, so that a busy writer cannot starve the others.

A writer takes the queue lock, takes the write lock, releases the queue lock, writes, and releases the write lock. While one
process writes, the next one holds the queue lock: the first can't take that again before the next one has the write lock.
SQLite's own locks protect the data; without these files only fairness is lost. The kernel drops the locks of a process that exits,
but not those of a process that is stopped by a signal: if it is stopped in the queue, the others pass it.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from supervisor.errors import StoreUnavailable
from supervisor.stores.sqlite.database_file import beside

_NAPS = (*[0.00005] * 8, 0.0002, 0.0005, 0.001, 0.002)  # a small commit takes less than the short ones together
_QUEUE_SHARE, _BLOCKED_QUEUE_SHARE = 0.5, 0.05
"""The parts of the timeout for which a writer waits in the queue: usually, and after it has waited in vain."""


class FairWriteLock:
    """A context manager around one transaction. Raises StoreUnavailable if it has waited for more than `timeout` seconds."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._queue_lock = FileLock(beside(path, "-queue.lock"))
        self._write_lock = FileLock(beside(path, "-write.lock"))
        self._path, self._timeout = path, timeout
        self._queue_share = _QUEUE_SHARE

    def __enter__(self) -> None:
        began = time.monotonic()
        is_next = _take(self._queue_lock, began + self._timeout * self._queue_share)
        self._queue_share = _QUEUE_SHARE if is_next else _BLOCKED_QUEUE_SHARE
        try:
            if not _take(self._write_lock, began + self._timeout):
                raise StoreUnavailable(f"{self._path}: other writers kept it busy for {self._timeout:g}s")
        finally:
            self._queue_lock.release()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._write_lock.release()

    def close(self) -> None:
        """Remove the files unless another process is using them at this moment; a process that has them open makes new ones."""
        if self._queue_lock.try_take() and self._write_lock.try_take():
            self._queue_lock.unlink()
            self._write_lock.unlink()
        self._queue_lock.close()
        self._write_lock.close()


class FileLock:
    """A lock on a file, which is made when the lock is first taken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def try_take(self) -> bool:
        """Return False if another process has the lock. If the file can't be opened, return True, so that nobody waits for it."""
        try:
            fcntl.flock(self._descriptor(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def release(self) -> None:
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def unlink(self) -> None:
        with suppress(OSError):  # it may be another user's
            self._path.unlink()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _descriptor(self) -> int:
        if self._fd is not None and os.fstat(self._fd).st_nlink == 0:
            self.close()
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return self._fd


def _take(lock: FileLock, deadline: float) -> bool:
    """Wait for the lock; return False if another process still has it at the deadline."""
    naps = iter(_NAPS)
    nap = _NAPS[0]
    while not lock.try_take():
        if time.monotonic() >= deadline:
            return False
        nap = next(naps, nap)
        time.sleep(nap)
    return True
