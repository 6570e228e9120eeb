"""Send READY, STOPPING, WATCHDOG and EXTEND_TIMEOUT_USEC to systemd, as in sd_notify(3); do nothing elsewhere."""

from __future__ import annotations

import os
from contextlib import suppress
from socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, socket

AFTER_GRACE = 60.0  # seconds, for all that follows the jobs at the end


class SystemdNotifier:
    """Takes the address out of the environment, as sd_notify(3) advises: a program of a job that notifies would do so for the
    supervisor."""

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")

    def notify(self, state: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        # An error is dropped: systemd restarts a unit from which it receives nothing.
        with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC) as channel:
            channel.setblocking(False)
            channel.sendto(state.encode(), address)

    def stopping(self, grace: float) -> None:
        """From now on systemd does not wait for WATCHDOG, and waits at least `grace` seconds and some more for the exit."""
        self.notify("STOPPING=1")
        self.notify(f"EXTEND_TIMEOUT_USEC={round((grace + AFTER_GRACE) * 1e6)}")
