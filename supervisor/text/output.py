"""Wait until a file descriptor that others share takes bytes again."""

from __future__ import annotations

import select


def wait_for_room(fd: int) -> None:
    """Wait after a BlockingIOError on `fd`: another process may have made the shared terminal or pipe non-blocking."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()


def has_room(fd: int) -> bool:
    """Return whether `fd`, if it is a pipe, takes PIPE_BUF bytes now."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
