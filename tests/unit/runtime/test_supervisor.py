"""The parts of a supervisor's run: the request to stop, the registration, a reload, the shutdown."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.config.settings import Settings
from supervisor.engine.plugin_changes import emit_plugin_events
from supervisor.errors import StoreUnavailable
from supervisor.events import Bus, ConfigRefused, Event, PluginWarning
from supervisor.handlers import HandlerInfo
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.reports import SourceReport
from supervisor.runtime.forkservers import Forkservers
from supervisor.runtime.registration import Registration
from supervisor.runtime.reload import Reloader
from supervisor.runtime.shutdown import ExitCode, Settled, Shutdown, ShutdownLimits
from supervisor.runtime.signals import StopRequest
from supervisor.runtime.tasks import start_task
from supervisor.stores.memory.store import MemoryStore

UNUSED: Any = SimpleNamespace()


class EndlessPruning:
    begun = 0

    async def prune(self) -> None:
        self.begun += 1
        await asyncio.get_running_loop().create_future()


class UnavailableAtFirst(MemoryStore):
    tries = 0

    def join(self, owner: str, host: str, pid: int) -> None:
        self.tries += 1
        if self.tries == 1:
            raise StoreUnavailable
        super().join(owner, host, pid)


def make_shutdown(stop: StopRequest, **limits: float) -> Shutdown:
    return Shutdown(UNUSED, stop, Bus(), 30.0, ShutdownLimits(**limits))


def make_registration(store: MemoryStore | None = None, horizon: float | None = None) -> Registration:
    registration = Registration(Settings(), "us", Bus(), PluginManager(), horizon)
    registration.store = store
    return registration


async def fail() -> None:
    raise ZeroDivisionError


def test_the_first_signal_counts_as_the_first_however_the_end_was_requested() -> None:
    stop = StopRequest()
    stop.request("drained")
    stop.on_signal("SIGTERM")
    assert stop.reason == "drained" and not stop.forced.is_set()
    stop.on_signal("SIGTERM")
    assert stop.forced.is_set()


def test_a_supervisor_that_is_signalled_to_end_does_not_prune() -> None:
    async def act() -> None:
        stop, engine = StopRequest(), EndlessPruning()
        shutdown = make_shutdown(stop, flush=3600.0)
        stop.request("drained")
        pruning = asyncio.ensure_future(shutdown.prune(engine))  # type: ignore[arg-type]
        while not engine.begun:
            await asyncio.sleep(0)
        stop.on_signal("SIGTERM")
        await pruning
        await shutdown.prune(engine)  # type: ignore[arg-type]
        assert engine.begun == 1

    asyncio.run(asyncio.wait_for(act(), 30))


def test_a_second_signal_cuts_short_the_waits_of_the_shutdown() -> None:
    async def act() -> None:
        stop = StopRequest()
        never = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(make_shutdown(stop, forced=0.01).wait_for(never, 3600.0))
        await asyncio.sleep(0)
        stop.forced.set()
        assert await waiting is False
        assert never.cancelled()

    asyncio.run(asyncio.wait_for(act(), 30))


def test_a_handler_whose_heartbeat_contradicts_itself_is_warned_of() -> None:
    bus, events = Bus(), []
    bus.subscribe(events.append)
    infos = (HandlerInfo("mail", {"heartbeat_timeout": "600ms"}, "a.py", 3), HandlerInfo("other", {}, "a.py", 5))
    emit_plugin_events(bus, [SourceReport("a.py", infos)], Settings())
    assert [event for event in events if isinstance(event, PluginWarning)] == [
        PluginWarning("a.py", "handler 'mail': heartbeat_timeout: expected at least twice its heartbeat, got 600ms")
    ]


def test_a_second_signal_cuts_short_the_wait_for_the_workers_of_an_old_forkserver() -> None:
    async def act() -> None:
        stop = StopRequest()
        stop.forced.set()
        forkservers = Forkservers("us", UNUSED, asyncio.get_running_loop())
        never = asyncio.get_running_loop().create_future()
        forkservers.retire(UNUSED, lambda backend: never)
        assert not await make_shutdown(stop, forced=0.01).wait_for(forkservers.retired())
        await forkservers.stop()
        assert never.cancelled()

    asyncio.run(asyncio.wait_for(act(), 30))


def test_the_horizon_counts_by_the_stores_clock_from_the_first_attempt_to_join() -> None:
    store = UnavailableAtFirst(clock=lambda: 1000.0 + 500.0 * store.tries)
    registration = make_registration(store, horizon=10.0)
    with pytest.raises(StoreUnavailable):
        registration.join_now()
    registration.join_now()
    assert registration.latest == 1010.0


def test_a_fault_in_a_task_ends_the_supervisor_with_a_failure() -> None:
    async def act() -> None:
        stop = StopRequest()
        asyncio.get_running_loop().set_exception_handler(stop.handle_fault)
        await asyncio.wait([start_task(fail())])
        await asyncio.sleep(0)
        assert stop.forced.is_set()
        assert make_shutdown(stop).exit_code(Settled.ALL, {}) == ExitCode.FATAL

    asyncio.run(act())


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


def test_a_join_that_fails_after_the_end_was_requested_is_no_fault() -> None:
    """Python 3.14 reports an error behind a cancelled shield to the loop's exception handler."""
    begun, cancelled = threading.Event(), threading.Event()

    def join_now() -> Any:
        begun.set()
        cancelled.wait(30)
        raise StoreUnavailable("no connection")

    async def act() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        registration = make_registration()
        registration.join_now = join_now  # type: ignore[method-assign]
        joining = asyncio.ensure_future(registration.join())
        while not begun.is_set():
            await asyncio.sleep(0)
        joining.cancel()
        await asyncio.wait([joining])
        cancelled.set()
        await registration.joined()
        await asyncio.sleep(0)
        assert joining.cancelled() and registration._joining is not None and not registration._joining.cancelled()
        assert faults == []

    asyncio.run(asyncio.wait_for(act(), 30))
