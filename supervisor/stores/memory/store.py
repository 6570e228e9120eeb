"""The memory store: the protocol in plain Python, for tests and for queues that may die with their process."""

from __future__ import annotations

import time
from collections.abc import Callable

from supervisor.stores.memory.operator import OperatorChanges
from supervisor.stores.memory.queries import Queries
from supervisor.stores.memory.settle import Settles
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.operator_commands import BatchedCommands


class MemoryStore(Settles, Queries, OperatorChanges):
    """Implements `supervisor.stores.protocol.Store`. `sibling` gives another owner's or client's view of the same jobs."""

    url = "memory://"

    def __init__(self, clock: Callable[[], float] = time.time, memory: MemoryState | None = None) -> None:
        super().__init__(clock, memory)
        commands = BatchedCommands(self, self.transaction, self.notify)
        self.cancel, self.retry, self.redrive = commands.cancel, commands.retry, commands.redrive
        self.delete, self.purge, self.prune, self.pause = (
            commands.delete,
            commands.purge,
            commands.prune,
            commands.pause,
        )

    def sibling(self) -> MemoryStore:
        return MemoryStore(self._clock, self._memory)

    def reader(self) -> MemoryStore:
        return self.sibling()
