"""Parent-side hooks on their thread, whatever they raise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from supervisor import hookimpl
from supervisor.events import Bus, Event, HookFailed, SupervisorStopping
from supervisor.plugins.manager import PluginManager
from supervisor.runtime.hook_runner import HookThread


class Recorder:
    def __init__(self) -> None:
        self.heard: list[Event] = []

    @hookimpl
    def supervisor_events(self, events: list[Event]) -> None:
        self.heard += events


class Raises:
    """At its first calls."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.calls = error, 0

    @hookimpl
    def supervisor_events(self, events: list[Event]) -> None:
        self.calls += 1
        if self.calls < 10:
            raise self.error


def play(plugins: list[object], scene: Callable[[Bus], None]) -> list[Event]:
    """All events."""
    bus, emitted = Bus(), list[Event]()
    bus.subscribe(emitted.append)
    manager = PluginManager(bus.emit)
    for number, plugin in enumerate(plugins):
        manager.register(plugin, f"plugin {number}")

    async def run() -> None:
        def in_loop(call: Callable[..., Any], *arguments: Any) -> None:
            call(*arguments)

        thread = HookThread(manager, bus, in_loop)
        scene(bus)
        await asyncio.wait_for(thread.stop(), 10)

    asyncio.run(run())
    return emitted


def test_one_that_fails_is_not_told_of_its_failures_and_of_those_again() -> None:
    raises = Raises(ValueError("no"))
    emitted = play([raises], lambda bus: bus.emit(SupervisorStopping("first")))
    assert raises.calls == 1
    assert [type(event) for event in emitted] == [SupervisorStopping, HookFailed]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(0), asyncio.CancelledError(), KeyboardInterrupt()])
def test_whatever_one_raises_the_next_is_called(error: BaseException) -> None:
    hears = Recorder()
    play([Raises(error), hears], lambda bus: bus.emit(SupervisorStopping("first")))
    assert hears.heard == [SupervisorStopping("first")]
