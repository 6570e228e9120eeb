"""Sends READY, STOPPING and WATCHDOG to systemd, as in sd_notify(3); does nothing elsewhere."""

from __future__ import annotations

import os
from contextlib import suppress
from socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, socket


class SystemdNotifier:
    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")

    def notify(self, state: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        # An error is dropped: systemd restarts a unit from which it receives nothing.
        with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC) as channel:
            channel.setblocking(False)
            channel.sendto(state.encode(), address)
