"""When a drain has done what it can: on a loop whose clock jumps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.events import Bus
from supervisor.runtime.drain import ASKED_AT_ONCE, until_drained
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.records import EnqueueRow
from tests.unit.dead_letters.test_publisher import DirectWriter, JumpingLoop, ScriptedSink

GRACE = 30.0


def seconds_until_drained(remaining: dict[str, int], *runners: ScriptedSink) -> float:
    async def answer(latest: float | None, most: int) -> dict[str, int]:
        return remaining

    loop = JumpingLoop()
    engine: Any = SimpleNamespace(quiet=True, changes=asyncio.Event(), unknown_jobs=None, remaining=answer)
    store: Any = SimpleNamespace(claim_dead_letters=lambda limit, ttl: [])
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
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    return loop.time() - start


def test_it_ends_when_nothing_is_left() -> None:
    assert seconds_until_drained({}) == 0.0


def test_it_ends_with_letters_that_no_sink_is_configured_for() -> None:
    assert GRACE <= seconds_until_drained({"dead_letters": 1}) < GRACE + 5.0


@pytest.mark.parametrize("turns", range(5))
def test_a_cancelled_drain_ends_whatever_happens_in_the_same_turn(turns: int) -> None:
    async def scene() -> None:
        async def answer(latest: float | None, most: int) -> dict[str, int]:
            return {"scheduled": 1}

        engine: Any = SimpleNamespace(quiet=True, changes=asyncio.Event(), unknown_jobs=None, remaining=answer)
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

    asyncio.run(scene())


class Backoff:
    """One job that goes to its handler `RETRY_IN` seconds from the start, beside jobs that no plugin serves."""

    RETRY_IN = 40.0
    WEEK = 604_800.0

    def __init__(self, served: frozenset[str] | None = None) -> None:
        self.loop = JumpingLoop()
        self.store = MemoryStore(clock=self.loop.time)
        self.retry = self.add("default", self.RETRY_IN)
        self.loop.call_later(self.RETRY_IN, self.store.delete, [self.retry])
        self.unknown: set[int] = set()
        self.found_out: set[int] = set()
        """Those that turn out to be so while it is asked what remains."""
        self.served = served

    def add(self, queue: str, delay: float) -> int:
        return self.store.enqueue([EnqueueRow("work", "null", queue, delay=delay)])[0]

    def put_off(self, queue: str = "default", delay: float = WEEK) -> int:
        """The id of a new job that no plugin serves."""
        self.unknown.add(id := self.add(queue, delay))
        return id

    def seconds(self, horizon: float | None = None) -> float:
        async def remaining(latest: float | None, most: int) -> dict[str, int]:
            left = self.store.remaining(self.served, latest)
            self.unknown |= self.found_out
            return {what: min(n, most) for what, n in left.items()}

        engine = SimpleNamespace(
            quiet=True, changes=asyncio.Event(), unknown_jobs=self.unknown, remaining=remaining,
            settings=SimpleNamespace(workers=SimpleNamespace(queues=self.served)),
        )  # fmt: skip
        return seconds_until(self.loop, engine, self.store, horizon=horizon)


def test_jobs_that_no_plugin_serves_are_left() -> None:
    backoff = Backoff()
    for _ in range(2 * ASKED_AT_ONCE):
        backoff.put_off()
    assert Backoff.RETRY_IN <= backoff.seconds() < Backoff.RETRY_IN + 5.0


def test_a_retry_is_waited_for_whatever_became_of_jobs_that_no_plugin_serves() -> None:
    backoff = Backoff(served=frozenset({"default", "paused"}))
    backoff.store.cancel([backoff.put_off()])
    backoff.store.delete([backoff.put_off()])
    backoff.put_off("unserved")
    backoff.put_off("paused")
    backoff.store.pause("paused", True)
    backoff.put_off()
    assert Backoff.RETRY_IN <= backoff.seconds() < Backoff.RETRY_IN + 5.0


def test_a_retry_is_waited_for_beside_jobs_that_turn_out_to_be_nobodys_while_it_is_counted() -> None:
    """What is scheduled is counted no further than one past those that were known to be nobody's: there may be more."""
    backoff = Backoff()
    backoff.found_out = {backoff.add("default", Backoff.WEEK) for _ in range(2)}
    assert Backoff.RETRY_IN <= backoff.seconds() < Backoff.RETRY_IN + 5.0


def test_a_retry_is_waited_for_beside_jobs_that_no_plugin_serves_after_the_horizon() -> None:
    backoff = Backoff()
    backoff.put_off(delay=Backoff.WEEK)
    backoff.put_off(delay=5.0)
    assert Backoff.RETRY_IN <= backoff.seconds(horizon=60.0) < Backoff.RETRY_IN + 5.0
