"""The lock by which others know whether an owner of a PostgreSQL store is gone: a name of the kernel's, which exists as long as a
process has it.

The name is that of an abstract Unix socket, held through an open description that the forkserver and the workers inherit.
Programs on the same boot and in the same network namespace can see that nobody holds it any more. Linux only: elsewhere
nothing is proven.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket

import orjson

BOOT = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/self/ns/net")


class OwnerLock:
    """The lock of one owner. `address` is where to look, and for which name; None if others can't, so that its leases end by
    their deadlines alone. `store` is a text that is the same for all owners of the store."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._socket: socket | None = None
        self.address: str | None = None

    def take(self, owner: str) -> int | None:
        """Return the descriptor of the lock, which this process holds from now on; None if it can't have one."""
        known_here = _known_here()
        if self._socket is None and known_here is not None:
            name = "supervisor-" + hashlib.sha256(f"{self._store} {owner}".encode()).hexdigest()[:32]
            held = socket(AF_UNIX, SOCK_DGRAM)
            try:
                held.bind(f"\0{name}")
            except OSError:
                held.close()
                return None
            self._socket, self.address = held, orjson.dumps([*known_here, name]).decode()
        return None if self._socket is None else self._socket.fileno()

    def release(self) -> None:
        """Give up the lock as far as this process holds it."""
        if self._socket is not None:
            self._socket.close()
        self._socket = self.address = None


def is_gone(address: str | None) -> bool:
    """Whether every process that held the lock at this address is provably dead."""
    if address is None:
        return False
    *where, name = orjson.loads(address)
    if _known_here() != tuple(where):
        return False
    with socket(AF_UNIX, SOCK_DGRAM) as probe:
        try:
            probe.connect(f"\0{name}")
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _known_here() -> tuple[str, str] | None:
    """This boot and this network namespace, in which such names are known."""
    with suppress(OSError):
        return BOOT.read_text().strip(), str(NETWORK.readlink())
    return None
