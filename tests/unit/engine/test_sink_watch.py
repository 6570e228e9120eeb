"""A sink that dead letters wait for, and that no running supervisor has, is reported once in a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from supervisor.engine.maintenance import REPORT_SINK_AGAIN, SinkWatch
from supervisor.engine.store_writer import CallFailed, Purpose
from supervisor.events import Bus, SinkMissing
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.protocol import Store
from tests.stores.factories import make_dead


class Writer:
    """Calls the store at once, or fails."""

    unavailable = False
    fails = False

    def __init__(self, store: Store) -> None:
        self._store = store

    def submit(self, call: Callable[[Store], Any], purpose: Purpose) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        if self.fails:
            future.set_exception(CallFailed("no right to read"))
        else:
            future.set_result(call(self._store))
        return future


class Scene:
    def __init__(self) -> None:
        self.now = 1000.0
        self.store = MemoryStore(lambda: self.now)
        self.other = self.joined("other", "file", "pager")
        make_dead(self.other, "a", "b")
        self.joined("this", "file")
        self.bus, self.events = Bus(), []
        self.bus.subscribe(self.events.append)
        self.writer = Writer(self.store)
        self.watch = SinkWatch(self.writer, self.bus, lambda: self.now)  # type: ignore[arg-type]

    def joined(self, owner: str, *sinks: str) -> MemoryStore:
        store = MemoryStore(state=self.store.state)
        store.join(owner, "here", 1, frozenset(sinks))
        return store

    def look(self, times: int = 1) -> list[Any]:
        """Return what is reported at these looks, a minute apart."""
        self.events.clear()
        for _ in range(times):
            asyncio.run(self.watch.look())
            self.now += 60.0
        return list(self.events)


def test_a_sink_of_a_running_supervisor_is_not_reported() -> None:
    assert Scene().look(3) == []


def test_a_sink_is_reported_that_is_missing_at_two_looks_in_a_row() -> None:
    here = Scene()
    here.other.leave()
    assert here.look() == []
    assert here.look() == [SinkMissing("pager", 2)]


def test_a_supervisor_that_was_restarted_is_not_reported() -> None:
    here = Scene()
    here.other.leave()
    assert here.look() == []
    here.joined("new", "file", "pager")
    assert here.look(3) == []


def test_a_sink_that_stays_missing_is_reported_again_after_an_hour() -> None:
    here = Scene()
    here.other.leave()
    assert len(here.look(3)) == 1
    assert here.look(50) == []
    here.now += REPORT_SINK_AGAIN
    assert len(here.look()) == 1


def test_a_sink_that_was_dropped_is_not_reported() -> None:
    here = Scene()
    here.other.leave()
    assert len(here.look(2)) == 1
    here.store.drop_sink("pager")
    here.now += REPORT_SINK_AGAIN
    assert here.look(3) == []


def test_a_store_that_refuses_to_answer_is_asked_again_at_the_next_look() -> None:
    here = Scene()
    here.other.leave()
    here.look()
    here.writer.fails = True
    assert here.look(2) == []
    here.writer.fails = False
    assert here.look() == [SinkMissing("pager", 2)]
