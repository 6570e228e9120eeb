"""The memory store: the protocol in plain Python, for tests and for queues that may die with their process."""

from __future__ import annotations

from supervisor.stores.memory.operator import Verbs
from supervisor.stores.memory.queries import Asking
from supervisor.stores.memory.settle import Settles
from supervisor.stores.protocol import Capabilities


class MemoryStore(Settles, Asking, Verbs):
    """Implements `supervisor.stores.protocol.Store`. `sibling` gives another owner's or client's view of the same jobs."""

    capabilities = Capabilities()
    url = "memory://"

    def sibling(self) -> MemoryStore:
        return MemoryStore(self._clock, self._shelf)

    def reader(self) -> MemoryStore:
        return self.sibling()
