"""Writers of one SQLite file take turns, so that a busy one cannot starve the others.

Lock a, lock b, unlock a, transaction, unlock b. While one writes (b), the next stands in the gate (a): the writer, done,
finds the gate shut and must let it through. SQLite's own locks keep the data right; this only keeps turns fair, so
whatever goes wrong with these files costs no more than fairness. The kernel drops the locks of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from supervisor.errors import StoreUnavailable

_NAPS = (*[0.00005] * 8, 0.0002, 0.0005, 0.001, 0.002)  # a small commit takes less than the short ones together


class FairWriteLock:
    """A context manager around one transaction. Raises StoreUnavailable if its turn hasn't come after `patience` seconds."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._entry_lock = _FileLock(beside(path, "-gate"))
        self._write_lock = _FileLock(beside(path, "-turn"))
        self._path, self._timeout = path, timeout

    def __enter__(self) -> None:
        deadline = time.monotonic() + self._timeout
        self._take(self._entry_lock, deadline)
        try:
            self._take(self._write_lock, deadline)
        finally:
            self._entry_lock.release()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._write_lock.release()

    def close(self) -> None:
        """Remove the files unless somebody is using them this moment; whoever still has them open makes new ones."""
        if self._entry_lock.try_take() and self._write_lock.try_take():
            self._entry_lock.unlink()
            self._write_lock.unlink()
        self._entry_lock.close()
        self._write_lock.close()

    def _take(self, lock: _FileLock, deadline: float) -> None:
        naps = iter(_NAPS)
        nap = _NAPS[0]
        while not lock.try_take():
            if time.monotonic() >= deadline:
                raise StoreUnavailable(f"{self._path}: other writers kept it busy for {self._timeout:g}s")
            nap = next(naps, nap)
            time.sleep(nap)


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


class _FileLock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def try_take(self) -> bool:
        """False if somebody else has it; a file that can't be had keeps nobody waiting."""
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
