"""When a drain has done what it can: on a loop whose clock jumps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from supervisor.engine.dead_letters import DeadLetters
from supervisor.engine.drained import until_drained
from supervisor.events import Bus
from tests.unit.test_dead_letters import DirectWriter, JumpingLoop, ScriptedOutlet

GRACE = 30.0


def seconds_until_drained(remaining: dict[str, int], *outlets: ScriptedOutlet, unknown: int = 0) -> float:
    loop = JumpingLoop()
    engine: Any = SimpleNamespace(quiet=True, changes=asyncio.Event(), unknown_jobs=set(range(unknown)))

    async def answer(horizon: float | None) -> dict[str, int]:
        return remaining

    async def drain() -> None:
        writer: Any = DirectWriter(SimpleNamespace(dead_letters=lambda limit, ttl: []))  # type: ignore[arg-type]
        letters = DeadLetters(writer, outlets, Bus(), loop)
        await asyncio.wait_for(until_drained(engine, letters, None, GRACE), 3600.0)
        await letters.stop()

    engine.remaining = answer
    start = loop.time()
    try:
        loop.run_until_complete(drain())
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    return loop.time() - start


def test_it_ends_when_nothing_is_left() -> None:
    assert seconds_until_drained({}) == 0.0


def test_it_ends_with_letters_that_no_sink_is_configured_for() -> None:
    assert GRACE <= seconds_until_drained({"dead_letters": 1}) < GRACE + 5.0
