"""Writes dead letters as JSON lines to a file that may be rotated and shared; each is on the disk before it counts as accepted."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY


class FileSink:
    """Sink type `file`. A relative `path` starts at the folder of the config file.

    The file may be moved or deleted at any time: the next batch starts a new one. Supervisors may share it: each batch is
    appended under an exclusive `flock`. No file is opened before the first publish.

    Raises ValueError if `path` can't be a file.
    """

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
                lines[dead_letter["id"]] = orjson.dumps(dead_letter, option=_STRICT | orjson.OPT_APPEND_NEWLINE)
            except TypeError:
                if len(dead_letters) == 1:
                    raise
        if lines:
            self._append(b"".join(lines.values()))
        return list(lines)

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
        """Return the open file, locked, and still the one at the path: it may be moved while the lock is waited for."""
        while True:
            fd = self._fd if self._fd is not None else self._open()
            fcntl.flock(fd, fcntl.LOCK_EX)
            if self._is_at_path(fd):
                return fd
            self.close()

    def _open(self) -> int:
        self._refuse_link_of_others()
        fd = os.open(self.path, _OPEN, 0o600)
        self._fd = fd
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            self.close()
            raise OSError(f"{self.path} is not a regular file")
        # The process that created the file may have been killed before this, so it is done at every opening.
        _sync_folder(self.path.resolve().parent)
        return fd

    def _refuse_link_of_others(self) -> None:
        """A symbolic link of another user could make this one, who may be root, write to any file."""
        try:
            there = os.lstat(self.path)
        except FileNotFoundError:
            return
        if stat.S_ISLNK(there.st_mode) and there.st_uid not in (os.geteuid(), 0):
            raise OSError(
                f"{self.path} is a symbolic link of user {there.st_uid}; expected a file, or a link of this user's"
            )

    def _is_at_path(self, fd: int) -> bool:
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(fd))


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
