"""The shares of groups in the config are written to the store: at the start, and when they change."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from supervisor.config.settings import QueueSettings, Settings, WorkerSettings
from supervisor.engine.group_shares import GroupShares
from supervisor.engine.store_writer import CallFailed


class Writer:
    def __init__(self) -> None:
        self.fails = False
        self.written: list[Any] = []

    def submit(self, call: Any, purpose: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        if self.fails:
            future.set_exception(CallFailed("no"))
        else:
            call(SimpleNamespace(set_group_shares=lambda *given: self.written.append(given)))
            future.set_result(None)
        return future


def settings(shares: dict[str, float], queues: frozenset[str] | None = None) -> Settings:
    return Settings(queues={"mail": QueueSettings(group_shares=shares)}, workers=WorkerSettings(queues=queues))


def test_they_are_written_once_until_they_change() -> None:
    writer: Any = Writer()
    config: Any = SimpleNamespace(settings=settings({"a": 2}))
    keeper = GroupShares(writer, config)
    assert keeper.is_due
    asyncio.run(keeper.write())
    assert not keeper.is_due
    config.settings = settings({"a": 3})
    assert keeper.is_due
    asyncio.run(keeper.write())
    assert writer.written == [({"mail": {"a": 2.0}}, None), ({"mail": {"a": 3.0}}, None)]


def test_only_those_of_the_served_queues_are_written() -> None:
    writer: Any = Writer()
    config: Any = SimpleNamespace(settings=settings({"a": 2}, frozenset({"other"})))
    asyncio.run(GroupShares(writer, config).write())
    assert writer.written == [({}, frozenset({"other"}))]


def test_they_are_written_again_if_the_store_did_not_take_them() -> None:
    writer: Any = Writer()
    writer.fails = True
    keeper = GroupShares(writer, SimpleNamespace(settings=settings({"a": 2})))  # type: ignore[arg-type]
    asyncio.run(keeper.write())
    assert keeper.is_due and not writer.written
