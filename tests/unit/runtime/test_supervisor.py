"""The supervisor's own tasks: a fault in one of them must not leave it standing still."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from supervisor.config.settings import Settings
from supervisor.engine.plugin_changes import emit_plugin_events
from supervisor.errors import StoreUnavailable
from supervisor.events import Bus, ConfigRefused, Event, PluginWarning
from supervisor.handlers import HandlerInfo
from supervisor.plugins.reports import SourceReport
from supervisor.runtime import supervisor as supervisor_module
from supervisor.runtime.signals import StopRequest
from supervisor.runtime.supervisor import ExitCode, Supervisor
from tests.unit.wrapped_store import WrappedStore


class Pruning:
    """Of what there is no end."""

    begun = 0

    async def prune(self) -> None:
        self.begun += 1
        await asyncio.get_running_loop().create_future()


class UnavailableAtFirst(WrappedStore):
    tries = 0

    def join(self, owner: str, host: str, pid: int) -> None:
        self.tries += 1
        if self.tries == 1:
            raise StoreUnavailable
        self.inner.join(owner, host, pid)


async def fail() -> None:
    raise ZeroDivisionError


def test_the_first_signal_is_the_first_however_the_end_began() -> None:
    stop = StopRequest()
    stop.ask("drained")
    stop.signalled("SIGTERM")
    assert stop.reason == "drained" and not stop.forced.is_set()
    stop.signalled("SIGTERM")
    assert stop.forced.is_set()


def test_whoever_is_told_to_end_does_not_prune(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FLUSH_SECONDS", 3600.0)

    async def scene() -> None:
        supervisor, engine = Supervisor(Settings()), Pruning()
        supervisor._stop = StopRequest()
        supervisor._stop.ask("drained")
        pruning = asyncio.ensure_future(supervisor._prune(engine))  # type: ignore[arg-type]
        while not engine.begun:
            await asyncio.sleep(0)
        supervisor._stop.signalled("SIGTERM")
        await pruning
        await supervisor._prune(engine)  # type: ignore[arg-type]
        assert engine.begun == 1

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_second_signal_cuts_short_what_the_end_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FORCED_SECONDS", 0.01)

    async def scene() -> None:
        supervisor = Supervisor(Settings())
        supervisor._stop = StopRequest()
        never = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(supervisor._wait_for(never, 3600.0))
        await asyncio.sleep(0)
        supervisor._stop.forced.set()
        assert await waiting is False
        assert never.cancelled()

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_handler_whose_heartbeat_contradicts_itself_is_warned_of() -> None:
    bus, told = Bus(), []
    bus.subscribe(told.append)
    infos = (HandlerInfo("mail", {"heartbeat_timeout": "600ms"}, "a.py", 3), HandlerInfo("other", {}, "a.py", 5))
    emit_plugin_events(bus, [SourceReport("a.py", infos)], Settings())
    assert [event for event in told if isinstance(event, PluginWarning)] == [
        PluginWarning("a.py", "handler 'mail': heartbeat_timeout: expected at least twice its heartbeat, got 600ms")
    ]


def test_a_second_signal_cuts_short_the_wait_for_the_workers_of_an_old_nursery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FORCED_SECONDS", 0.01)

    async def scene() -> None:
        supervisor = Supervisor(Settings())
        supervisor._stop = StopRequest()
        supervisor._stop.forced.set()
        never = asyncio.ensure_future(asyncio.get_running_loop().create_future())
        supervisor._retiring = {never}  # type: ignore[arg-type]
        await supervisor._end_retiring()
        assert never.cancelled()

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_the_horizon_is_by_the_stores_clock_at_the_first_try_to_join() -> None:
    supervisor = Supervisor(Settings(), drain=True, horizon=10.0)
    store = supervisor._store = UnavailableAtFirst(clock=lambda: 1000.0 + 500.0 * store.tries)
    with pytest.raises(StoreUnavailable):
        supervisor._join_now()
    supervisor._join_now()
    assert supervisor._latest == 1010.0


def test_a_fault_in_a_task_ends_the_supervisor_with_a_failure() -> None:
    async def scene() -> None:
        supervisor = Supervisor(Settings())
        supervisor._loop = asyncio.get_running_loop()
        supervisor._stop = StopRequest()
        supervisor._loop.set_exception_handler(supervisor._on_exception)
        task = supervisor._keep(fail())
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert supervisor._stop.forced.is_set()
        assert supervisor._exit_code(True, {}) == ExitCode.FATAL

    asyncio.run(scene())


def test_whatever_reading_the_config_again_raises_the_old_one_stays() -> None:
    def reload() -> Settings:
        raise RuntimeError("Could not determine home directory.")

    async def scene() -> None:
        events: list[Event] = []
        supervisor: Any = Supervisor(old := Settings(), subscribers=[events.append])
        supervisor._loop, supervisor._engine = asyncio.get_running_loop(), object()
        await supervisor._reload_now(reload)
        assert events == [ConfigRefused(("it can't be read: RuntimeError: Could not determine home directory.",))]
        assert supervisor.settings is old

    asyncio.run(scene())


def test_a_join_that_fails_after_the_end_was_asked_for_is_no_fault() -> None:
    """Python 3.14 tells the loop's handler what is raised behind a shield that was cancelled."""
    begun, cancelled = threading.Event(), threading.Event()

    def join() -> int | None:
        begun.set()
        cancelled.wait(30)
        raise StoreUnavailable("nobody there")

    async def scene() -> None:
        supervisor = Supervisor(Settings())
        supervisor._loop = asyncio.get_running_loop()
        faults: list[object] = []
        supervisor._loop.set_exception_handler(lambda _, context: faults.append(context))
        supervisor._join_now = join  # type: ignore[method-assign]
        joining = asyncio.ensure_future(supervisor._join())
        while not begun.is_set():
            await asyncio.sleep(0)
        joining.cancel()
        await asyncio.wait([joining])
        cancelled.set()
        assert supervisor._joining is not None
        await asyncio.wait([supervisor._joining])
        await asyncio.sleep(0)
        assert joining.cancelled() and not supervisor._joining.cancelled()
        assert faults == []

    asyncio.run(asyncio.wait_for(scene(), 30))
