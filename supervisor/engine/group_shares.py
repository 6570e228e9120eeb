"""The shares of groups, as the config has them, in the store: programs that enqueue read them there."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.stores.groups import Shares

Written = tuple[Shares, frozenset[str] | None]
"""The shares, and the queues that they are set in: None for all."""


@dataclass(eq=False)
class GroupShares:
    """Writes the shares of the queues served here at the start, and whenever the config has others."""

    _writer: Writer
    _config: CurrentConfig
    _written: Written | None = None

    @property
    def is_due(self) -> bool:
        return self._written != self._wanted()

    async def write(self) -> None:
        shares, queues = wanted = self._wanted()
        with suppress(NotDone):
            await self._writer.submit(lambda store: store.set_group_shares(shares, queues), Purpose.SHARES)
            self._written = wanted

    def _wanted(self) -> Written:
        served, queues = self._config.settings.workers.queues, self._config.settings.queues
        return {name: it.group_shares for name, it in queues.items() if served is None or name in served}, served
