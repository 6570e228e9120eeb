"""The lock by which others know whether an owner of a PostgreSQL store is gone: a name in the kernel, which exists as long as a
process holds it.

It is the name of an abstract Unix socket, which the forkserver and the workers inherit. Programs on the same boot and in the same
network namespace can see that no process holds it any more. This works on Linux only; elsewhere nothing is proven.
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
    """The lock of one owner. `address` is the text with which others find it; None if they can't, so that only their deadlines
    end the owner's leases. `store` is a text that is the same for all owners of the store."""

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
        """Close this process's descriptor of the lock. Children that inherited it still hold the lock."""
        if self._socket is not None:
            self._socket.close()
        self._socket = self.address = None


def is_gone(address: str | None) -> bool:
    """Return whether every process that held the lock at this address has provably exited."""
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
    """Return this boot and this network namespace, in which such names are known; None if /proc does not show them."""
    with suppress(OSError):
        return BOOT.read_text().strip(), str(NETWORK.readlink())
    return None
