"""A real event loop that never sleeps."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Where the loop would sleep, its clock jumps."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            self.now += timeout or 0.0
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = JumpingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which the loop runs nothing."""
        self.selector.now += seconds

    def cancel_all(self) -> None:
        """Cancel the tasks that are left."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.run_until_complete(asyncio.sleep(0))
