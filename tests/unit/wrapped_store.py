"""A memory store that answers some calls in its own way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from supervisor.stores.memory.store import MemoryStore


class WrappedStore:
    """Every method that a subclass does not define is that of `inner`."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.inner = MemoryStore(clock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
