"""Write bytes to a file descriptor that others share."""

from __future__ import annotations

import os
import select


def write_some(fd: int, data: bytes | memoryview) -> int:
    """Write like `os.write`, and wait for room: another user of the same terminal or pipe may have made it non-blocking."""
    while True:
        try:
            return os.write(fd, data)
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
