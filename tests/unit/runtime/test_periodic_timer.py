"""The beat of the housekeeping, on a loop whose clock jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from supervisor.runtime.periodic_timer import run_every
from tests.unit.dead_letters.test_publisher import JumpingLoop


def ticks_within(seconds: float, taken: Callable[[int], float]) -> list[float]:
    """When it ticked; each tick takes so many seconds, by its number."""
    loop, ticks = JumpingLoop(), list[float]()
    start = loop.time()

    def act() -> None:
        ticks.append(loop.time() - start)
        loop.selector.now += taken(len(ticks))

    async def tick_for_a_while() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_every(1.0, act), seconds)

    try:
        loop.run_until_complete(tick_for_a_while())
    finally:
        loop.close()
    return ticks


def test_ticks_do_not_drift_however_long_each_takes() -> None:
    ticks = ticks_within(600.5, lambda number: number % 9 / 10)
    assert ticks == pytest.approx([float(second) for second in range(1, 601)], abs=0.01)


def test_ticks_missed_while_the_loop_stood_still_are_not_made_up_for() -> None:
    ticks = ticks_within(14.6, lambda number: 10.5 if number == 2 else 0.0)
    assert ticks == pytest.approx([1.0, 2.0, 12.5, 13.5, 14.5], abs=0.01)
