"""Handlers that no plugin serves here, and since when. Told by handler, not by job: a bad deploy is an absence of its handlers."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple


class Absence(NamedTuple):
    """Monotonic seconds: since when it has been missed, and when a job of it was last seen."""

    since: float
    last_seen: float


class Absences:
    def __init__(self) -> None:
        self._by_handler: dict[str, Absence] = {}

    def missed_for(self, handler: str, now: float, *, grace: float, again_in: float) -> float:
        """A job of it was met: for how long it has been missed. One not asked for during `grace` beyond the time after which
        its jobs are looked at again (`again_in`) is a new absence."""
        absence = self._by_handler.get(handler)
        if absence is None or now - absence.last_seen >= grace + 2 * again_in:
            absence = Absence(now, now)
        self._by_handler[handler] = Absence(absence.since, now)
        return now - absence.since

    def end(self, served: Container[str]) -> None:
        """These handlers are served now."""
        self._by_handler = {name: absence for name, absence in self._by_handler.items() if name not in served}
