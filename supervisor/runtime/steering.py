"""The effects of signals and of requests over HTTP on a supervisor that runs."""

from __future__ import annotations

from supervisor.runtime.signals import StopRequest
from supervisor.text.units import counted
from supervisor.workers.pool import Pool

STOPPING = "the supervisor is stopping"


class Steering:
    """Implements `supervisor.http.view.Steering`."""

    def __init__(self, pool: Pool, stop: StopRequest) -> None:
        self._pool, self._stop = pool, stop

    def keeps_size(self) -> str | None:
        """Return why the number of workers can't be changed now, or None."""
        if self._stop.requested.is_set():
            return STOPPING
        if not self._pool.others.size.max:
            return "all queues that are served here are in workers.groups"
        return None

    def resize(self, by: int) -> str:
        """Have so many workers more, but at least one. Return the number as text."""
        self._pool.resize(max(1, self._pool.others.size.max + by))
        size = self._pool.others.size
        return counted(size.max, "worker") if size.is_fixed else f"{size.text} workers"

    def drain(self, reason: str) -> None:
        self._stop.request(reason)
