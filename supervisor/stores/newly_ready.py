"""The queues in which blocked jobs became ready or scheduled, kept for the engine until it asks for them."""

from __future__ import annotations

NO_QUEUES = frozenset[str]()


class NewlyReady:
    def __init__(self) -> None:
        self._queues: set[str] = set()
        self.add, self.clear = self._queues.update, self._queues.clear

    def take(self) -> frozenset[str]:
        """Return the queues that were added since the last call. Hot path."""
        if not self._queues:
            return NO_QUEUES
        found = frozenset(self._queues)
        self._queues.clear()
        return found
