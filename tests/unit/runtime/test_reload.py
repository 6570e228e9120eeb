"""Settings and plugins that are read again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from supervisor.config.settings import Settings
from supervisor.engine.plugin_changes import emit_plugin_events
from supervisor.events import Bus, ConfigRefused, Event, PluginWarning
from supervisor.handlers import HandlerInfo
from supervisor.plugins.reports import SourceReport
from supervisor.runtime.reload import Reloader

UNUSED: Any = SimpleNamespace()


def test_the_old_config_stays_in_use_whatever_reading_the_new_one_raises() -> None:
    def read() -> Settings:
        raise RuntimeError("Could not determine home directory.")

    async def act() -> None:
        bus, events = Bus(), list[Event]()
        bus.subscribe(events.append)
        reloader = Reloader(old := Settings(), bus)
        await reloader.reload(read, UNUSED, UNUSED)
        assert events == [ConfigRefused(("it can't be read: RuntimeError: Could not determine home directory.",))]
        assert reloader.settings is old

    asyncio.run(act())


def test_a_handler_whose_heartbeat_contradicts_itself_is_warned_of() -> None:
    bus, events = Bus(), []
    bus.subscribe(events.append)
    infos = (HandlerInfo("mail", {"heartbeat_timeout": "600ms"}, "a.py", 3), HandlerInfo("other", {}, "a.py", 5))
    emit_plugin_events(bus, [SourceReport("a.py", infos)], Settings())
    assert [event for event in events if isinstance(event, PluginWarning)] == [
        PluginWarning("a.py", "handler 'mail': heartbeat_timeout: expected at least twice its heartbeat, got 600ms")
    ]
