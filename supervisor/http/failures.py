"""The newest failures in groups, counted seldom: that looks at thousands of jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from supervisor.stores.protocol import Store

MAX_GROUPS = 100
MIN_WAIT, WAITS = 5.0, 200
"""Failures are counted again after so many seconds, or so many times as long as that took."""


class Failures:
    """The newest failures by handler, error and cause, the most frequent ones first. `age` is how many seconds ago they were counted.

    It is used on the thread that reads the store."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._groups: list[dict[str, Any]] = []
        self._counted_at = self._due = float("-inf")

    @property
    def age(self) -> float:
        return self._clock() - self._counted_at

    def groups(self, store: Store, limit: int = MAX_GROUPS) -> list[dict[str, Any]]:
        now = self._clock()
        if now >= self._due:
            self._groups = store.failures(MAX_GROUPS)
            self._counted_at = self._clock()
            self._due = self._counted_at + max(MIN_WAIT, WAITS * (self._counted_at - now))
        return self._groups[:limit]
