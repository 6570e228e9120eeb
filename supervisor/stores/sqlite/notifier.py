"""`<db>.notify/<owner>.sock`: the datagram socket by which clients wake the supervisor of an owner of a SQLite store."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import AF_UNIX, MSG_DONTWAIT, SOCK_DGRAM, socket

_MAX_ADDRESS_BYTES = 107
_UNBOUND = (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTSOCK)


class Notifier:
    """The socket of one owner. It notifies the sockets of all other owners."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket: socket | None = None
        self._name = ""

    def bind(self, owner: str) -> None:
        """Make the socket of this owner, in a folder that exists. Raises OSError."""
        self._name = f"{owner}.sock"
        if self._socket is None:
            self._socket = self._bound(self._folder / self._name)

    def unbind(self) -> None:
        """Close the socket; its file stays."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._name = None, ""

    def fd(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    def clear(self) -> None:
        """Read one notification. To look for another one costs more than to be woken once more."""
        with suppress(BlockingIOError):
            if self._socket is not None:
                self._socket.recv(1)

    def notify(self) -> None:
        """Notify all other owners. A socket that is full has notified its owner already; one that no process reads is removed. If
        this process has no descriptor left, nobody is notified, and owners find the jobs when they poll. Every enqueue waits for
        this, so no Path is made of each name."""
        folder = str(self._folder)
        try:
            names = [name for name in os.listdir(folder) if name.endswith(".sock") and name != self._name]  # noqa: PTH208
            sender = socket(AF_UNIX, SOCK_DGRAM)
        except OSError:
            return
        with sender:
            for name in names:
                _notify_one(sender, f"{folder}/{name}")

    @staticmethod
    def _bound(path: Path) -> socket | None:
        bound = socket(AF_UNIX, SOCK_DGRAM)
        bound.setblocking(False)
        path.unlink(missing_ok=True)
        try:
            with _address(str(path)) as address:
                bound.bind(address)
        except OSError:
            # Without /proc a long path can't be shortened: the owner polls.
            bound.close()
            return None
        path.chmod(0o600)
        return bound


def _notify_one(sender: socket, path: str) -> None:
    try:
        with _address(path) as address:
            sender.sendto(b"!", MSG_DONTWAIT, address)
    except OSError as error:
        if error.errno in _UNBOUND:
            with suppress(OSError):
                Path(path).unlink()


@contextmanager
def _address(path: str) -> Iterator[str]:
    """Yield a path to the socket that fits into a socket address, however long the folder's own path is."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS_BYTES:
        yield path
        return
    folder, name = os.path.split(path)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
