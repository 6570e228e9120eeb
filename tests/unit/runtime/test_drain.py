"""When `run --drain` ends, on a loop whose clock jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.engine.store_writer import CallFailed
from supervisor.events import Bus
from supervisor.runtime.drain import until_drained
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.records import EnqueueRow
from tests.unit.dead_letters.scripted import DirectWriter, ScriptedSink
from tests.unit.jumping_loop import JumpingLoop

GRACE = 30.0


def engine_with(remaining: Callable[[float | None, int], Awaitable[dict[str, int]]]) -> Any:
    report = SimpleNamespace(limits_hold_back=lambda: False)
    return SimpleNamespace(
        quiet=True, changes=asyncio.Event(), remaining=remaining, blocked=lambda: False, self_report=report
    )


def seconds_until_drained(remaining: dict[str, int] | CallFailed, *runners: ScriptedSink) -> float:
    async def answer(latest: float | None, most: int) -> dict[str, int]:
        if isinstance(remaining, CallFailed):
            raise remaining
        return remaining

    loop = JumpingLoop()
    engine = engine_with(answer)
    store: Any = SimpleNamespace(claim_dead_letters=lambda *_: [])
    return seconds_until(loop, engine, store, *runners)


def seconds_until(
    loop: JumpingLoop, engine: Any, store: Any, *runners: ScriptedSink, horizon: float | None = None
) -> float:
    async def drain() -> None:
        engine.writer = writer = DirectWriter(store)
        latest = None if horizon is None else store.clock() + horizon
        dead_letters = DeadLetterPublisher(writer, runners, Bus(), loop)  # type: ignore[arg-type]
        await asyncio.wait_for(until_drained(engine, dead_letters, latest, GRACE), 3600.0)
        await dead_letters.stop()

    start = loop.time()
    try:
        loop.run_until_complete(drain())
    finally:
        loop.cancel_all()
        loop.close()
    return loop.time() - start


def test_a_drain_ends_when_nothing_is_left() -> None:
    assert seconds_until_drained({}) == 0.0


def test_a_drain_ends_with_dead_letters_for_which_no_sink_is_configured() -> None:
    assert GRACE <= seconds_until_drained({"dead_letters": 1}) < GRACE + 5.0


def test_a_drain_leaves_dead_letters_to_supervisors_that_have_their_sinks() -> None:
    left = {"dead_letters_for_other_sinks": 1}
    assert GRACE <= seconds_until_drained(left, ScriptedSink("file")) < GRACE + 5.0


def test_a_drain_ends_after_the_grace_if_the_store_refuses_to_count() -> None:
    assert GRACE <= seconds_until_drained(CallFailed("no right to count")) < GRACE + 5.0


def test_blocked_jobs_are_waited_for_while_a_limit_holds_jobs_back() -> None:
    """A rate allows the next claim only after a time that is longer than the grace."""
    loop, rate = JumpingLoop(), 4 * GRACE

    async def remaining(latest: float | None, most: int) -> dict[str, int]:
        return {"blocked": 1}

    engine = engine_with(remaining)
    engine.self_report.limits_hold_back = lambda: loop.time() - start < rate
    start = loop.time()
    assert rate + GRACE <= seconds_until(loop, engine, SimpleNamespace()) < rate + GRACE + 5.0


@pytest.mark.parametrize("turns", range(5))
def test_a_cancelled_drain_ends_whatever_happens_in_the_same_turn(turns: int) -> None:
    async def act() -> None:
        async def answer(latest: float | None, most: int) -> dict[str, int]:
            return {"scheduled": 1}

        engine = engine_with(answer)
        dead_letters: Any = SimpleNamespace(stuck=False)
        draining = asyncio.ensure_future(until_drained(engine, dead_letters, None, GRACE))
        for _ in range(10):
            await asyncio.sleep(0)
        engine.changes.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        draining.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert draining.cancelled()

    asyncio.run(act())


def test_a_drain_that_can_do_nothing_ends_after_the_grace() -> None:
    async def remaining(latest: float | None, most: int) -> dict[str, int]:
        return {"ready": 1}

    engine = engine_with(remaining)
    engine.blocked = lambda: True
    assert GRACE <= seconds_until(JumpingLoop(), engine, SimpleNamespace()) < GRACE + 5.0


class Retry:
    """One retry that is done `RETRY_IN` seconds after the start, and jobs that no plugin serves."""

    RETRY_IN = 40.0
    WEEK = 604_800.0

    def __init__(self) -> None:
        self.loop = JumpingLoop()
        self.store = MemoryStore(clock=self.loop.time)
        (retry,) = self.store.enqueue([EnqueueRow("work", "null", delay=self.RETRY_IN)])
        self.loop.call_later(self.RETRY_IN, self.store.delete, [retry])

    def add_unknown(self, count: int = 1, delay: float = WEEK) -> None:
        self.store.enqueue([EnqueueRow("unknown", "null", delay=delay)] * count)

    def seconds(self, horizon: float | None = None) -> float:
        async def remaining(latest: float | None, most: int) -> dict[str, int]:
            return self.store.remaining(None, latest, most, ["work"])

        return seconds_until(self.loop, engine_with(remaining), self.store, horizon=horizon)


def test_jobs_that_no_plugin_serves_are_left_and_none_of_them_is_read() -> None:
    scene = Retry()
    scene.add_unknown(1000)
    scene.store.get = None  # type: ignore[assignment]
    assert Retry.RETRY_IN <= scene.seconds() < Retry.RETRY_IN + 5.0


def test_a_retry_is_waited_for_beside_jobs_that_no_plugin_serves_after_the_horizon() -> None:
    scene = Retry()
    scene.add_unknown(delay=Retry.WEEK)
    scene.add_unknown(delay=5.0)
    assert Retry.RETRY_IN <= scene.seconds(horizon=60.0) < Retry.RETRY_IN + 5.0
