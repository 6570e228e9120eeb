"""The periodic timer, on a loop whose clock jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from supervisor.runtime.periodic_timer import run_every
from tests.unit.jumping_loop import JumpingLoop


def calls_within(seconds: float, taken: Callable[[int], float]) -> list[float]:
    """Return the times of the calls; a call takes `taken` seconds, by its number."""
    loop, calls = JumpingLoop(), list[float]()
    start = loop.time()

    def act() -> None:
        calls.append(loop.time() - start)
        loop.stand_still(taken(len(calls)))

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_every(1.0, act), seconds)

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    return calls


def test_calls_do_not_drift_however_long_each_takes() -> None:
    calls = calls_within(600.5, lambda number: number % 9 / 10)
    assert calls == pytest.approx([float(second) for second in range(1, 601)], abs=0.01)


def test_calls_missed_while_the_loop_stood_still_are_not_made_up_for() -> None:
    calls = calls_within(14.6, lambda number: 10.5 if number == 2 else 0.0)
    assert calls == pytest.approx([1.0, 2.0, 12.5, 13.5, 14.5], abs=0.01)
