"""The memory store: the protocol in plain Python, for tests and for queues that may die with their process."""

from __future__ import annotations

from supervisor.stores.memory.operator import OperatorChanges
from supervisor.stores.memory.queries import Queries
from supervisor.stores.memory.settle import Settles


class MemoryStore(Settles, Queries, OperatorChanges):
    """Implements `supervisor.stores.protocol.Store`. `sibling` gives another owner's or client's view of the same jobs."""

    url = "memory://"

    def sibling(self) -> MemoryStore:
        return MemoryStore(self._clock, self._memory)

    def reader(self) -> MemoryStore:
        return self.sibling()
