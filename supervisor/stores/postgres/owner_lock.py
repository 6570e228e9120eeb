"""Whether an owner on this machine still lives: it holds a name of the kernel that goes with the last process that has it.

The name is of an abstract Unix socket, through an open description that nursery and workers inherit; a program on the same
boot and in the same network namespace can tell that nobody holds it any more. Linux only: elsewhere nothing is proven.
"""

from __future__ import annotations

import hashlib
import socket
from contextlib import suppress
from pathlib import Path

import orjson

BOOT = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/self/ns/net")


class OwnerLock:
    """`place` says where to look and for what; None if others can't tell, so that leases end by their deadline alone."""

    def __init__(self, owner: str) -> None:
        self.place: str | None = None
        self._socket: socket.socket | None = None
        where = here()
        if where is None:
            return
        name = "supervisor-" + hashlib.sha256(owner.encode()).hexdigest()[:32]
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            held.bind(f"\0{name}")
        except OSError:
            held.close()
            return
        self._socket = held
        self.place = orjson.dumps([*where, name]).decode()

    def fileno(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def here() -> tuple[str, str] | None:
    """This boot and this network namespace, in which such names are known."""
    with suppress(OSError):
        return BOOT.read_text().strip(), str(NETWORK.readlink())
    return None


def is_gone(place: str | None) -> bool:
    """Whether every process that held the name is provably dead."""
    if place is None:
        return False
    *where, name = orjson.loads(place)
    if here() != tuple(where):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(f"\0{name}")
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
