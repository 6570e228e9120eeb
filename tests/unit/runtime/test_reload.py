"""Settings and plugins that are read again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from supervisor.config.settings import HandlerSettings, Settings, WorkerSettings
from supervisor.engine.current_config import emit_config_events, emit_plugin_events
from supervisor.events import Bus, ConfigRefused, ConfigWarning, Event, PluginWarning
from supervisor.handlers import HandlerInfo
from supervisor.plugins.reports import SourceReport
from supervisor.runtime.plugin_changes import digests_of
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


def test_a_misspelt_handler_and_a_misspelt_queue_are_warned_of() -> None:
    bus, events = Bus(), []
    bus.subscribe(events.append)
    settings = Settings(workers=WorkerSettings(queues=frozenset({"defualt"})), handlers={"mial": HandlerSettings()})
    emit_config_events(bus, [SourceReport("a.py", (HandlerInfo("mail", {}, "a.py", 3),))], settings)
    assert [event for event in events if isinstance(event, ConfigWarning)] == [
        ConfigWarning("config: handlers.mial: no plugin has this handler, did you mean 'mail'?"),
        ConfigWarning("config: workers.queues: no other key names queue 'defualt', did you mean 'default'?"),
    ]


def test_a_pipe_among_the_plugins_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "a.py").write_text("x = 1\n")
    os.mkfifo(tmp_path / "plugins" / "b.py")
    assert [*digests_of(Settings(base=tmp_path))] == [str(tmp_path / "plugins" / "a.py")]
