"""Sends READY, STOPPING and WATCHDOG to systemd, as in sd_notify(3); does nothing elsewhere."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class SystemdNotifier:
    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")

    def notify(self, state: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)
                channel.sendto(state.encode(), address)
        except OSError:
            pass  # systemd restarts a unit from which it receives nothing
