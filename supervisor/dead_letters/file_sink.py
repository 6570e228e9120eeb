"""Write dead letters as JSON lines to a file that may be rotated and shared. Each is on the disk before it is accepted."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from supervisor.text.os_errors import not_writable

STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40
_LOOK_AGAIN = 0.02  # seconds between two looks at a lock that another process holds


class FileSink:
    """The sink type `file`. A relative `path` is relative to the folder of the config file.

    The file may be moved or deleted at any time: the next batch starts a new one. Supervisors may share it: each batch is
    appended under an exclusive `flock`, for which the sink waits `lock_wait` seconds at most. No file is opened before the first
    publish. The file, and each symbolic link on the way to it, must belong to this user or to root.

    Raises ValueError if `path` can't be a file.
    """

    lock_wait = 5.0

    def __init__(self, path: str) -> None:
        if not isinstance(path, str) or not path or "\x00" in path:
            raise ValueError(f"path: expected the path of a file, got {path!r}")
        self.path = Path(path)
        if self.path.is_dir():
            raise ValueError(f"path: {self.path} is a folder, expected a file")
        if not self.path.parent.is_dir():
            raise ValueError(f"path: the folder {self.path.parent} does not exist")
        self._fd: int | None = None

    def publish(self, dead_letters: Sequence[Mapping[str, Any]]) -> Iterable[int]:
        """Append one line per dead letter, and return their ids. One that is not JSON is left out.

        Raises OSError if the batch is not on the disk; then nothing of it is in the file. Raises TypeError if there is only one
        dead letter, and it is not JSON.
        """
        lines: dict[int, bytes] = {}
        for dead_letter in dead_letters:
            try:
                lines[dead_letter["id"]] = orjson.dumps(dead_letter, option=STRICT | orjson.OPT_APPEND_NEWLINE)
            except TypeError:
                if len(dead_letters) == 1:
                    raise
        if lines:
            self._append(b"".join(lines.values()))
        return list(lines)

    def refused(self) -> str | None:
        """Return why this user may not write the file, and what to do. None if it may, as far as that shows without opening it."""
        there = self.path if os.path.lexists(self.path) else self.path.parent
        if not os.access(there, (os.R_OK | os.W_OK) if there is self.path else (os.W_OK | os.X_OK), effective_ids=True):
            return not_writable([self.path])
        is_other = there is self.path and not _is_trusted(there.stat())
        return self._not_own(there.stat()) if is_other else None

    def _not_own(self, status: os.stat_result) -> str:
        return f"{self.path} is a file of user {status.st_uid}; expected a file of this user, or none yet"

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, data: bytes) -> None:
        fd = self._lock()
        try:
            _append_whole(fd, data)
        except BaseException:
            self.close()
            raise
        fcntl.flock(fd, fcntl.LOCK_UN)

    def _lock(self) -> int:
        """Return the open and locked file, after a check that it is still at the path: it may be moved during the wait."""
        until = time.monotonic() + self.lock_wait
        while True:
            fd = self._fd if self._fd is not None else self._open()
            while not _is_locked(fd):
                if time.monotonic() >= until:
                    self.close()
                    raise TimeoutError(f"{self.path} is locked by another process for more than {self.lock_wait:g}s")
                time.sleep(_LOOK_AGAIN)
            if self._is_at_path(fd):
                return fd
            self.close()

    def _open(self) -> int:
        try:
            fd = _open_own(self.path)
        except OSError as error:
            refused = self.refused() if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else None
            if refused is None:
                raise
            raise OSError(error.errno, refused) from None
        self._fd = fd
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(f"{self.path} is not a regular file")
        if not _is_trusted(status):
            self.close()
            raise OSError(self._not_own(status))
        # Whoever created the file may have been killed before this step, so the folder is synced at every opening.
        _sync_folder(self.path.resolve().parent)
        return fd

    def _is_at_path(self, fd: int) -> bool:
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(fd))


def _is_trusted(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0)


def _is_locked(fd: int) -> bool:
    """Try to take the lock, and return whether it is taken. There is no wait: any user who may read the file can hold it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_own(path: Path) -> int:
    """Open or create the file at `path`. No link of another user is followed, neither the last part nor a folder before it: such
    a link could make this user, who may be root, write to any file. Each part is opened before it is checked, so that nobody
    can exchange it in between.
    """
    ahead, links = list(reversed(path.absolute().parts)), 0
    with ExitStack() as opened:
        here = -1  # the first part is absolute
        while True:
            part = ahead.pop()
            try:
                there = os.open(part, _LOOK, dir_fd=here)
            except FileNotFoundError:
                if ahead:
                    raise
                return os.open(part, _OPEN, 0o600, dir_fd=here)
            opened.callback(os.close, there)
            status = os.fstat(there)
            if not stat.S_ISLNK(status.st_mode):
                if not ahead:
                    return os.open(part, _OPEN, 0o600, dir_fd=here)
                here = there
                continue
            links += 1
            _refuse_link(path, part, status, links)
            ahead += reversed(Path(os.readlink("", dir_fd=there)).parts)


def _refuse_link(path: Path, part: str, status: os.stat_result, links: int) -> None:
    if not _is_trusted(status):
        raise OSError(
            f"{path}: {part} is a symbolic link of user {status.st_uid}; expected a file, or a link of this user's"
        )
    if links > _MAX_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _append_whole(fd: int, data: bytes) -> None:
    """Append all of `data`, synced, or nothing: an incomplete write is cut off again. The caller holds the lock."""
    before = os.fstat(fd).st_size
    try:
        _write(fd, _line_break(fd, before) + data)
        os.fsync(fd)
    except BaseException:
        os.ftruncate(fd, before)
        raise


def _line_break(fd: int, size: int) -> bytes:
    """Return a line break if the last line has none: a writer killed in the middle of a line must not spoil the next."""
    return b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
