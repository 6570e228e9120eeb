"""Release the jobs that are held back for a limit which this supervisor does not have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from supervisor.engine.committer import Summary
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.stores.protocol import Store

RELEASED_AT_ONCE = 1000


@dataclass(eq=False)
class HeldBackRelease:
    """Makes jobs ready whose limit was removed, or is that of supervisors with another config: each applies its own limits."""

    _writer: Writer
    _config: CurrentConfig
    _on_released: Callable[[Summary], None]

    async def release(self) -> None:
        if self._writer.unavailable:
            return
        with suppress(NotDone):
            while queues := await self._writer.submit(self._release, Purpose.REPAIR):
                self._on_released(Summary(ready=queues))

    def _release(self, store: Store) -> frozenset[str]:
        limits = self._config.job_limits
        limited = () if limits is None else limits.handlers.keys()
        return store.release_held(limited, self._config.settings.workers.queues, RELEASED_AT_ONCE)
