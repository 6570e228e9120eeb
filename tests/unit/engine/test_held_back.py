"""Jobs that are held back for a limit that was removed are released, however many they are, and leave the store to others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.engine.committer import Summary
from supervisor.engine.held_back import RELEASED_AT_ONCE, HeldBackRelease
from tests.unit.jumping_loop import JumpingLoop

SECONDS = 0.5
"""Of one call."""


class Store:
    """Holds `held` jobs back. Each call takes a while."""

    def __init__(self, loop: JumpingLoop) -> None:
        self.held = 0
        self.held_again = 0  # by another supervisor after each release
        self.limits: list[int] = []
        self._loop = loop

    def release_held(self, limited: Any, served: Any, limit: int) -> frozenset[str]:
        released = min(self.held, limit)
        self.held += self.held_again - released
        self.limits.append(limit)
        return frozenset(["mail"]) if released else frozenset()

    def submit(self, call: Any, purpose: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._loop.stand_still(SECONDS)
        self._loop.call_soon(future.set_result, call(self))
        return future


@pytest.fixture
def loop() -> Iterator[JumpingLoop]:
    loop = JumpingLoop()
    yield loop
    loop.close()


def release_of(store: Store, loop: JumpingLoop, released: list[Summary]) -> HeldBackRelease:
    writer: Any = SimpleNamespace(unavailable=False, submit=store.submit)
    config: Any = SimpleNamespace(job_limits=None, settings=SimpleNamespace(workers=SimpleNamespace(queues=None)))
    return HeldBackRelease(writer, config, released.append, loop.time)


def test_all_are_released_in_batches_and_others_are_notified_of_each(loop: JumpingLoop) -> None:
    store, released = Store(loop), list[Summary]()
    store.held = 100 * RELEASED_AT_ONCE
    loop.run_until_complete(release_of(store, loop, released).release())
    assert store.held == 0
    assert store.limits == [RELEASED_AT_ONCE] * 101
    assert released == [Summary(ready=frozenset(["mail"]))] * 100


async def _within(seconds: float, work: Any) -> None:
    async with asyncio.timeout(seconds):
        await work


def test_the_store_is_left_to_others_most_of_the_time_while_another_supervisor_holds_the_jobs_back_again(
    loop: JumpingLoop,
) -> None:
    store, began = Store(loop), loop.time()
    store.held = store.held_again = RELEASED_AT_ONCE
    with pytest.raises(TimeoutError):
        loop.run_until_complete(_within(100.0, release_of(store, loop, []).release()))
    assert len(store.limits) * SECONDS <= (loop.time() - began) / 4
