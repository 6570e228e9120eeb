"""The parts of a supervisor that answers are made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from supervisor.config.settings import Settings
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.own_problems import unavailable_store
from supervisor.errors import StoreUnavailable
from supervisor.http.failures import Failures
from supervisor.http.reading import Reader
from supervisor.stores.protocol import Store
from supervisor.telemetry.history import Numbers
from supervisor.text.redaction import Mask

Result = TypeVar("Result")


class Steering(Protocol):
    """Changes this supervisor as signals do."""

    def keeps_size(self) -> str | None:
        """Return why the number of workers can't be changed now, or None."""

    def resize(self, by: int) -> str:
        """Have so many workers more. Return the number as text."""

    def drain(self, reason: str) -> None:
        """End the supervisor, as TERM does."""


@dataclass
class View:
    """`engine` and `reader` do not exist before the store is joined."""

    state: Callable[[], str]
    settings: Callable[[], Settings]
    metrics: Callable[[], dict[str, Any]]
    engine: Coordinator | None = None
    reader: Reader | None = None
    history: Callable[[], Mapping[str, Numbers]] = dict  # to be called on the thread that reads the store
    end_streams: Callable[[], Awaitable[None]] | None = None
    owner: str = ""
    store_error: str = ""  # while the store that is to be joined is unavailable
    steering: Steering | None = None
    failures: Failures = field(default_factory=Failures)

    def problems(self) -> list[dict[str, Any]]:
        """Return what keeps this supervisor from its work, as `status --json` has it."""
        if self.engine is not None:
            return [problem._asdict() for problem in self.engine.problems()]
        if not self.store_error:
            return []
        return [unavailable_store(Mask(self.settings().secrets)(self.store_error))._asdict()]

    def problems_of_store(self) -> list[dict[str, Any]]:
        """Return those problems that the store may not show, since they keep it from being written."""
        return [problem for problem in self.problems() if problem["kind"] in ("store", "claims")]

    def own_status(self) -> dict[str, Any] | None:
        """Return the row of this supervisor as it is now, not as the store has it."""
        return None if self.engine is None else self.engine.status(self.owner, self.state())

    async def read(self, call: Callable[[Store], Result]) -> Result:
        """Return what `call` returns for the store. Raises StoreError."""
        if self.reader is None:
            raise StoreUnavailable("the supervisor has not joined its store yet")
        return await self.reader.read(call)
