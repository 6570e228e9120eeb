"""When `run --drain` has done what it can."""

from __future__ import annotations

import asyncio

from supervisor.engine.dead_letters import DeadLetters
from supervisor.engine.engine import Engine

LOOK_EVERY = 0.5


async def until_drained(engine: Engine, letters: DeadLetters, horizon: float | None, grace: float) -> None:
    """Until the served, unpaused queues have nothing left, or only what this run can't do: jobs whose handler no plugin
    serves, or letters that no sink has taken for `grace` seconds with nothing else to do."""
    loop = asyncio.get_running_loop()
    stuck_since: float | None = None
    while True:
        if engine.quiet:
            remaining = await engine.remaining(horizon)
            can_be_done = set(remaining) - _only_unknown(remaining, len(engine.unknown_jobs or ()))
            if not can_be_done:
                return
            if can_be_done == {"dead_letters"} and letters.stuck:
                stuck_since = stuck_since if stuck_since is not None else loop.time()
                if loop.time() - stuck_since >= grace:
                    return
            else:
                stuck_since = None
        engine.changes.clear()
        await _wait(engine.changes, LOOK_EVERY)


def _only_unknown(remaining: dict[str, int], unknown: int) -> set[str]:
    """What is left of nothing but jobs that no plugin serves."""
    return {"scheduled"} if remaining.get("scheduled", 0) <= unknown else set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        pass
