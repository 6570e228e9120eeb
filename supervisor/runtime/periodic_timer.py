"""A steady beat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def run_every(period: float, act: Callable[[], None]) -> None:
    """Call `act` every `period` seconds, from the schedule, not from when the last call ended: it does not drift. What was missed
    while the loop stood still is not made up for: one call, and a new schedule from there."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due = max(due + period, loop.time())
        await asyncio.sleep(due - loop.time())
        act()
