"""Release the jobs that are held back for a limit which this supervisor does not have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from supervisor.engine.committer import Summary
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.stores.protocol import Store

RELEASED_AT_ONCE = 1000
PAUSE = 4.0
"""The next batch is released after so many times the time that the last one took. A supervisor that has the limit may hold the same
jobs back again meanwhile, so that there is always another batch."""


@dataclass(eq=False)
class HeldBackRelease:
    """Makes jobs ready whose limit was removed, or is that of supervisors with another config: each applies its own limits."""

    _writer: Writer
    _config: CurrentConfig
    _on_released: Callable[[Summary], None]
    _now: Callable[[], float]

    async def release(self) -> None:
        """Release batch after batch until none is left. Others use the store in the pauses."""
        if self._writer.unavailable:
            return
        with suppress(NotDone):
            began = self._now()
            while queues := await self._writer.submit(self._release, Purpose.REPAIR):
                self._on_released(Summary(ready=queues))
                await asyncio.sleep(PAUSE * (self._now() - began))
                began = self._now()

    def _release(self, store: Store) -> frozenset[str]:
        return store.release_held(self._config.job_limits, self._config.settings.workers.queues, RELEASED_AT_ONCE)
