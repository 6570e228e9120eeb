"""Send READY, STOPPING and WATCHDOG to systemd, as in sd_notify(3); do nothing elsewhere."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


class SystemdNotifier:
    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")

    def notify(self, state: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        # An error is dropped: systemd restarts a unit from which it receives nothing.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)
            channel.sendto(state.encode(), address)
