"""The files of a SQLite store: the creation of the database, the paths beside it, and SQLite's errors as errors of a store."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from contextlib import closing, suppress
from pathlib import Path

from supervisor.errors import (
    RowRefused,
    StoreBroken,
    StoreDamaged,
    StoreError,
    StoreMissing,
    StoreReplaced,
    StoreUnavailable,
)
from supervisor.text.os_errors import not_writable

OLDEST_SQLITE = (3, 35, 0)
LOOK_AGAIN = 0.1
"""The seconds between two looks at an empty file."""

_UNAVAILABLE = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM,
})  # fmt: skip
_DENIED = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})  # a missing right is one cause
_SHORTAGES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_REFUSED = frozenset({sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE})


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def prepare_file(path: Path, create: bool) -> None:
    """Create the file if it doesn't exist. Only its owner may use a new file; SQLite gives the log the same mode. Raises
    StoreMissing if the file is missing and `create` is false, and StoreError if it can't be created or used."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(
            f"SQLite {sqlite3.sqlite_version} is too old; expected {'.'.join(map(str, OLDEST_SQLITE))} or newer"
        )
    if _exists(path):
        if _is_truncated(path):
            raise StoreDamaged(
                f"{path}: the file is empty, but its log is there: it was truncated; stop all that use it, and restore it from a backup"
            )
        return
    if not create:
        raise StoreMissing(f"{path}: no such database")
    try:
        _create(path)
    except OSError as error:
        kind = StoreUnavailable if error.errno in _SHORTAGES else StoreError
        denied = error.errno in (errno.EACCES, errno.EROFS) and path.parent.is_dir()
        why = not_writable([path.parent]) if denied else error.strerror
        raise kind(f"{path}: can't be created: {why}") from error


def _create(path: Path) -> None:
    """Create the file if nobody else does meanwhile. Made by root, it belongs to the owner of its folder, whose supervisor
    uses it; SQLite gives its log and its index to the same user."""
    with suppress(FileExistsError):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if os.geteuid() == 0:
                folder = path.parent.stat()
                os.fchown(fd, folder.st_uid, folder.st_gid)
        finally:
            os.close(fd)


def _is_truncated(path: Path) -> bool:
    """Return whether the file is empty although a store was made in it: SQLite would wait for its other users in vain, or begin a new
    store silently. The second look is for a file that another process makes at this moment beside the log of a deleted one."""
    with suppress(FileNotFoundError):
        if path.stat().st_size == 0 and beside(path, "-wal").exists():
            time.sleep(LOOK_AGAIN)
            return path.stat().st_size == 0 and beside(path, "-wal").exists()
    return False


class FileIdentity:
    """The file that is at `path` now. SQLite itself continues to use a file that was deleted, replaced, truncated or overwritten, so
    that all commits are lost. `lost` is the reason once that is known."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._file = os.stat(self._path)  # noqa: PTH116
        self._uri = f"{path.as_uri()}?mode=rw"  # which makes no file
        self.lost: str | None = None

    def look(self) -> None:
        """Open the file as any other program does, which reads its first pages anew: the connections that are open keep them."""
        try:
            with closing(sqlite3.connect(self._uri, uri=True, timeout=0.0)) as other:
                other.execute("select count(*) from sqlite_master")
        except sqlite3.Error as error:
            if code_of(error) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                self.lost = f"{error}: it was overwritten while it was open, so restore it from a backup"

    def check(self) -> None:
        """Raise StoreReplaced if another file is at the path, or none, or if it is empty or was overwritten. Each transaction begins
        with this."""
        if self.lost is not None:
            raise StoreReplaced(f"{self._path}: {self.lost}")
        try:
            there = os.stat(self._path)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            there = None
        except OSError:  # unknown, for example because a right is missing
            return
        if there is None or there.st_ino != self._file.st_ino or there.st_dev != self._file.st_dev:
            raise StoreReplaced(f"{self._path}: the file was deleted, moved or replaced while it was open")
        if there.st_size == 0 and self._file.st_size:
            raise StoreReplaced(f"{self._path}: the file was truncated while it was open, so restore it from a backup")
        self._file = there


def store_error(error: sqlite3.Error, path: Path) -> StoreError:
    code = code_of(error)
    if code in _DENIED and (denied := _denied(path)):
        return StoreBroken(not_writable(denied))
    if code == sqlite3.SQLITE_CORRUPT:
        return StoreDamaged(f"{path}: {error}: restore it from a backup, or repair a copy with sqlite3's .recover")
    if code == sqlite3.SQLITE_NOTADB:
        return StoreBroken(
            f"{path}: {error}: restore it from a backup if it was overwritten, or correct store in the config if the path is a wrong one"
        )
    if code == sqlite3.SQLITE_FULL:
        return StoreUnavailable(f"{path}: {error}: free space on the disk of {path.parent}")
    if code in _UNAVAILABLE:
        return StoreUnavailable(f"{path}: {error}")
    if code in _REFUSED or isinstance(error, sqlite3.DataError | sqlite3.IntegrityError):
        return RowRefused(f"{path}: {error}")
    return StoreBroken(f"{path}: {error}")


def code_of(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _exists(path: Path) -> bool:
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            beside(path, "-journal").lstat()  # the longest name that SQLite gives a file
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreBroken(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise StoreBroken(f"{path}: expected a file, not {'a folder' if stat.S_ISDIR(mode) else 'a device or pipe'}")
    return True


def _denied(path: Path) -> list[Path]:
    """Return those of SQLite's files that this user may not use, or else their folder if that is not usable. No file is
    opened for this check: to close a database file would drop every lock that this process has on it."""
    files = [file for file in (path, beside(path, "-wal"), beside(path, "-shm")) if os.path.lexists(file)]
    denied = [file for file in files if not os.access(file, os.R_OK | os.W_OK, effective_ids=True)]
    folder = path.parent
    return denied or ([] if os.access(folder, os.W_OK | os.X_OK, effective_ids=True) else [folder])
