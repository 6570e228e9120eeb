"""Jobs past their retention are deleted now and then, at a small share of the time of the store."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from supervisor.config.settings import RetentionSettings
from supervisor.engine.maintenance import COST, Pruner, Repairer
from supervisor.events import Bus
from supervisor.stores.records import PruneRun

SECONDS = 2.0
"""Of one call."""


class Store:
    """Has `left` jobs to pass over, 10 in a call. Each call takes a while."""

    def __init__(self) -> None:
        self.now = 0.0
        self.left = 0
        self.calls = 0
        self.deleted = 0

    def prune(self, retention: RetentionSettings, limit: int, run: PruneRun) -> int:
        self.calls += 1
        self.now += SECONDS
        passed = run.passed[0] = (run.passed.get(0, (0, 0))[0] + 10, 0)
        run.more = passed[0] < self.left
        return self.deleted

    def submit(self, call: Any, purpose: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(call(self))
        return future


def pruner(store: Store) -> Pruner:
    writer: Any = SimpleNamespace(unavailable=False, submit=store.submit)
    config: Any = SimpleNamespace(settings=SimpleNamespace(retention=RetentionSettings()))
    return Pruner(writer, config, lambda: store.now)


def test_a_run_goes_on_to_its_end() -> None:
    store = Store()
    store.left = 35
    asyncio.run(pruner(store).prune())
    assert store.calls == 4


def test_the_next_run_waits_the_longer_the_longer_the_last_one_took() -> None:
    store = Store()
    store.left = 35
    prunes = pruner(store)
    asyncio.run(prunes.prune_when_due())
    assert store.calls == 4
    ended = store.now
    for wait, calls in ((COST * 4 * SECONDS - 1.0, 4), (1.0, 8)):
        store.now += wait
        asyncio.run(prunes.prune_when_due())
        assert store.calls == calls
    assert store.now > ended + COST * SECONDS


def test_the_time_of_calls_that_delete_jobs_does_not_put_off_the_next_run() -> None:
    store = Store()
    store.left, store.deleted = 35, 7
    prunes = pruner(store)
    for calls in (4, 8):
        asyncio.run(prunes.prune_when_due())
        assert store.calls == calls


def test_a_drain_prunes_at_its_end_in_any_case() -> None:
    store = Store()
    prunes = pruner(store)
    asyncio.run(prunes.prune_when_due())
    asyncio.run(prunes.prune())
    assert store.calls == 2


def test_the_next_repair_waits_the_longer_the_longer_the_last_one_took() -> None:
    store = Store()
    repaired: list[float] = []

    def repair() -> str:
        store.now += SECONDS
        repaired.append(store.now)
        return ""

    store.repair = repair  # type: ignore[attr-defined]
    writer: Any = SimpleNamespace(unavailable=False, submit=store.submit)
    pool: Any = SimpleNamespace(idle_count=lambda: 1)
    repairer = Repairer(writer, pool, Bus(), lambda: store.now, lambda: None)
    for wait, times in ((0.0, 1), (COST * SECONDS - 1.0, 1), (1.0, 2)):
        store.now += wait
        asyncio.run(repairer.repair())
        assert len(repaired) == times
