"""Parent-side hooks on their thread, whatever they raise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from supervisor import hookimpl
from supervisor.events import Bus, Event, HookFailed, HookWarning, LoopGap, SupervisorStopping
from supervisor.plugins.manager import HookCall, PluginManager
from supervisor.runtime.hook_runner import CUT_OFF, SLOW, HookRunner, HookWatch


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


class Watched:
    """A watch of calls at times that the test sets."""

    def __init__(self) -> None:
        self.now, self.warned = 100.0, list[str]()
        self.watch = HookWatch(lambda event: self.warned.append(event.message), lambda: self.now)

    def call(self, begun: float, ended: float | None = None) -> HookCall:
        call = HookCall("supervisor_events", "slow.py")
        call.begun, call.ended = begun, ended
        self.watch.calls.append(call)
        return call

    def look(self) -> list[str]:
        self.warned.clear()
        self.watch.look()
        return self.warned


def test_a_hook_that_does_not_return_is_reported_once_while_it_runs_and_when_it_returns() -> None:
    here = Watched()
    call = here.call(begun=100.0)
    here.now += SLOW - 0.1
    assert here.look() == []
    here.now += 0.1
    (message,) = here.look()
    assert message.startswith("has not returned for 5s: jobs run, and other hooks and events wait for it; ")
    assert here.look() == []
    call.ended = 130.0
    assert here.look() == ["has returned after 30s"]
    assert here.look() == []


def test_a_hook_that_ran_in_a_gap_of_the_loop_is_named_and_no_other() -> None:
    here = Watched()
    here.call(begun=80.0, ended=91.0)
    blocks = here.call(begun=90.0, ended=99.9)
    here.call(begun=99.9)
    here.watch.note_gap(LoopGap(9.0))
    assert [message.partition(":")[0] for message in here.warned] == ["ran while the supervisor stood still for 9s"]
    blocks.begun = 96.0
    here.watch.note_gap(LoopGap(9.0))
    assert len(here.warned) == 1


def test_a_hook_that_hangs_at_the_end_is_named() -> None:
    begun, go_on, emitted = threading.Event(), threading.Event(), list[Event]()

    class Hangs:
        @hookimpl
        def supervisor_stopping(self, reason: str) -> None:
            begun.set()
            go_on.wait()

    manager = PluginManager()
    manager.register(Hangs(), "hangs.py")
    bus = Bus()
    bus.subscribe(emitted.append)

    async def run() -> None:
        hooks = HookRunner(manager, bus, bus.emit)
        hooks.start()
        hooks.call("supervisor_stopping", reason="SIGTERM")
        stopping = asyncio.ensure_future(hooks.stop())
        await asyncio.to_thread(begun.wait)
        stopping.cancel()
        await asyncio.wait((stopping,))

    asyncio.run(run())
    go_on.set()
    assert emitted == [HookWarning("supervisor_stopping", "hangs.py", CUT_OFF)]
