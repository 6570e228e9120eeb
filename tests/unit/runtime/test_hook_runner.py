"""Parent-side hooks on their thread, whatever they raise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from supervisor import hookimpl
from supervisor.events import Bus, Event, HookFailed, SupervisorStopping
from supervisor.plugins.manager import PluginManager
from supervisor.runtime.hook_runner import HookRunner


class Recorder:
    def __init__(self) -> None:
        self.received: list[Event] = []

    @hookimpl
    def supervisor_events(self, events: list[Event]) -> None:
        self.received += events


class Raises:
    """Raises at its first calls."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.calls = error, 0

    @hookimpl
    def supervisor_events(self, events: list[Event]) -> None:
        self.calls += 1
        if self.calls < 10:
            raise self.error


def run_hooks(plugins: list[object], act: Callable[[Bus], None]) -> list[Event]:
    """Return all events that were emitted."""
    bus, emitted = Bus(), list[Event]()
    bus.subscribe(emitted.append)
    manager = PluginManager(bus.emit)
    for number, plugin in enumerate(plugins):
        manager.register(plugin, f"plugin {number}")

    async def run() -> None:
        hooks = HookRunner(manager, bus, bus.emit)
        hooks.start()
        act(bus)
        await asyncio.wait_for(hooks.stop(), 10)

    asyncio.run(run())
    return emitted


def test_a_hook_that_fails_does_not_get_the_event_of_its_own_failure() -> None:
    raises = Raises(ValueError("no"))
    emitted = run_hooks([raises], lambda bus: bus.emit(SupervisorStopping("first")))
    assert raises.calls == 1
    assert [type(event) for event in emitted] == [SupervisorStopping, HookFailed]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(0), asyncio.CancelledError(), KeyboardInterrupt()])
def test_the_next_hook_is_called_whatever_one_raises(error: BaseException) -> None:
    recorder = Recorder()
    run_hooks([Raises(error), recorder], lambda bus: bus.emit(SupervisorStopping("first")))
    assert recorder.received == [SupervisorStopping("first")]
