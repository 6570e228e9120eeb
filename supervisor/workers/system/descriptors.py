"""The limit on the descriptors of this process: raised for the supervisor, and compared with the need of its workers."""

from __future__ import annotations

import resource
from contextlib import suppress

from supervisor.text.os_errors import DESCRIPTOR_LIMITS
from supervisor.text.units import counted

OF_SUPERVISOR = 100
"""Descriptors for all but the workers: the store, sinks, plugins, two forkservers, and the channels of a worker that is starting."""
OF_WORKER = 10
"""Its channels, and its pidfd."""
KEPT_FREE = 32
"""Descriptors that no new worker may take: a supervisor without any can neither read the state of a process nor use its store."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one. Return the soft limit before, which the children of this process are to have: some
    programs handle no descriptors above 1024, and others close all that they may have one by one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def limit(pid: int, soft: int) -> None:
    """Set the soft limit of another process; it keeps its own if a sandbox refuses that."""
    with suppress(OSError, ValueError):
        _soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(soft, hard), hard))


def end_of_channels() -> int:
    """Return the lowest number of a descriptor that no channel of a worker may have."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - min(KEPT_FREE, soft // 8)


def most_workers() -> int:
    """Return how many workers the hard limit allows."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, (hard - OF_SUPERVISOR) // OF_WORKER)


def shortage(workers: int, keys: str = "workers.count") -> str | None:
    """Return a sentence if the hard limit does not allow so many workers, and as many again, which a reload may replace; or None.
    `keys` of the config give the number."""
    most = most_workers()
    if 2 * workers <= most:
        return None
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    what = "start" if workers > most else "be replaced at once in a reload"
    return (
        f"{keys}: {counted(workers, 'worker')} can't {'all ' if workers > 1 else ''}{what}, since this process may have {hard} descriptors: raise the hard limit "
        f"({DESCRIPTOR_LIMITS}) to {OF_SUPERVISOR + 2 * OF_WORKER * workers}, or set {keys} to at most {max(1, most // 2)}{'' if keys == 'workers.count' else ' in all'}"
    )
