"""Wait until a file descriptor that others share takes bytes again."""

from __future__ import annotations

import select


def wait_for_room(fd: int) -> None:
    """Call it after a BlockingIOError: another user of the same terminal or pipe may have made it non-blocking."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()
