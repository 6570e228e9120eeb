"""The parts of a supervisor that answers are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from supervisor.config.settings import Settings
from supervisor.engine.coordinator import Coordinator
from supervisor.errors import StoreUnavailable
from supervisor.http.reading import Reader
from supervisor.stores.protocol import Store

Result = TypeVar("Result")


@dataclass
class View:
    """`engine` and `reader` do not exist before the store is joined."""

    state: Callable[[], str]
    settings: Callable[[], Settings]
    metrics: Callable[[], dict[str, Any]]
    engine: Coordinator | None = None
    reader: Reader | None = None

    def problems(self) -> list[dict[str, Any]]:
        """Return what keeps this supervisor from its work, as `status --json` has it."""
        if self.engine is None:
            return []
        return [problem._asdict() for problem in self.engine.problems()]

    async def read(self, call: Callable[[Store], Result]) -> Result:
        """Return what `call` returns for the store. Raises StoreError."""
        if self.reader is None:
            raise StoreUnavailable("the supervisor has not joined its store yet")
        return await self.reader.read(call)
