"""One run of a supervisor: start, serve, end."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import random

from supervisor import events
from supervisor.config.settings import Settings
from supervisor.dead_letters.opening import BuiltInSinks, SinkBuilder, close_sinks
from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.dead_letters.sink_runner import SinkRunner
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.current_config import emit_config_events
from supervisor.engine.store_writer import NO_PAUSES, USUAL_PAUSES, Writer
from supervisor.engine.tasks import drop_error
from supervisor.errors import ConfigError, StoreReplaced
from supervisor.events import Bus, Event, Subscriber
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager, load_parent_side
from supervisor.plugins.reports import SourceReport
from supervisor.runtime.drain import Left, until_drained
from supervisor.runtime.forkservers import Forkservers
from supervisor.runtime.hook_runner import HookRunner
from supervisor.runtime.registration import Registration
from supervisor.runtime.reload import Reloader
from supervisor.runtime.shutdown import ExitCode, Parts, Serving, Shutdown
from supervisor.runtime.signals import DRAIN, SignalInbox, StopRequest
from supervisor.runtime.steering import STOPPING, Steering
from supervisor.runtime.systemd import SystemdNotifier
from supervisor.runtime.tasks import cancel, run_every, start_task
from supervisor.runtime.terminal import Terminal
from supervisor.runtime.web import serve
from supervisor.stores.opening import IN_ONE_PROCESS
from supervisor.stores.protocol import Reports, Store
from supervisor.telemetry.metrics import Metrics
from supervisor.text.redaction import Mask
from supervisor.threads import started_executor
from supervisor.workers.blame import HOST
from supervisor.workers.pool import Pool
from supervisor.workers.system import descriptors, requirements
from supervisor.workers.worker_group import OTHERS

PERIOD = 1.0  # seconds between two calls of the engine's timer
SWITCH_INTERVAL = 0.00002  # seconds
THREADS = 2  # for calls that may block: of the store's notifications, and of the files of a config
NEW_OBJECTS = 50_000  # between two garbage collections


class Supervisor:
    """One run of one supervisor.

    `reload` returns the settings anew after HUP. `drain` ends the run once the served queues have nothing left (that is due
    within `horizon` seconds of the start, if given). `run` blocks and returns the exit code; it raises ConfigError or StoreError
    for a mistake of the user that is found before anything has started, and SystemRefused.
    """

    def __init__(
        self, settings: Settings, *, reload: Callable[[], Settings] | None = None, drain: bool = False,
        horizon: float | None = None, subscribers: Sequence[Subscriber] = (),
    ) -> None:  # fmt: skip
        self.owner = f"{HOST}-{os.getpid()}-{secrets.token_hex(8)}"
        self.state = "starting"
        self.bus = Bus()
        self.metrics = Metrics()
        self._read_settings = reload
        self._drain = drain
        self._horizon = horizon
        self._stop = StopRequest()
        self._executor = started_executor(THREADS)
        self._reloader = Reloader(settings, self.bus, self._executor)
        self._systemd = SystemdNotifier()
        self._terminal = Terminal()
        self.bus.subscribe(self.metrics)
        self.bus.subscribe(self._store_lost, events.StoreLost)
        for subscriber in subscribers:
            self.bus.subscribe(subscriber)

    @property
    def settings(self) -> Settings:
        """The settings in use: those of the last reload."""
        return self._reloader.settings

    def run(self) -> int:
        requirements.require()
        try:
            return asyncio.run(self._run())
        finally:
            self._executor.shutdown(wait=False)

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._stop.handle_fault)
        parts = self._make_parts(loop)
        steering = Steering(parts.pool, self._stop)
        if self.settings.http is not None:
            parts.web = serve(self.settings.http, lambda: self.state, lambda: self.settings, self.metrics.snapshot)
            parts.web.steer(self.owner, steering)
            self.bus.subscribe(parts.web.store_changed, events.StoreBecameUnavailable, events.StoreAvailableAgain)
        inbox = SignalInbox(loop, self._stop, {
            signal.SIGHUP: self._on_hangup,
            signal.SIGUSR1: lambda: self._emit_status(parts),
            signal.SIGTTIN: lambda: _resize(steering, +1),
            signal.SIGTTOU: lambda: _resize(steering, -1),
        }, self.bus.emit)  # fmt: skip
        try:
            await self._stop.run_until_requested(self._start(parts, inbox))
            if parts.serving is not None and not self._stop.requested.is_set():
                await self._serve(parts, parts.serving)
        finally:
            code, left = await self._end(parts)
            if parts.web is not None:
                await parts.web.close()
            inbox.close()
        self.bus.emit(events.SupervisorStopped(code, *left))
        return code

    def _make_parts(self, loop: asyncio.AbstractEventLoop) -> Parts:
        def emit_from_thread(event: Event) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.bus.emit, event)

        workers = self.settings.workers
        pool = Pool(
            workers.sizes[OTHERS].min, self.bus, loop,
            max_jobs=workers.max_jobs, max_memory=workers.max_memory, max_memory_hard=workers.max_memory_hard,
        )  # fmt: skip
        pool.configure(workers.sizes)
        plugins = PluginManager(emit_from_thread)
        return Parts(
            pool=pool,
            plugins=plugins,
            registration=Registration(
                self.settings, self.owner, self.bus, plugins, emit_from_thread, self._horizon, self._executor
            ),
            forkservers=Forkservers(self.owner, pool, loop),
            hooks=HookRunner(plugins, self.bus, emit_from_thread),
        )

    # starting

    async def _start(self, parts: Parts, inbox: SignalInbox) -> None:
        registration = parts.registration
        # A built-in store is joined first, since workers may inherit a descriptor of it; any other comes from a plugin.
        store = await self._join(registration) if registration.is_built_in else None
        parts.forkservers.owner_fd = registration.owner_fd
        parts.forkservers.descriptor_limit = descriptors.raise_limit()
        backend = parts.forkservers.add(self.settings)
        reports = await backend.start()
        emit_config_events(self.bus, reports, self.settings, backend.schedule_misfits)
        parts.plugins.register(BuiltInSinks(), BuiltInSinks.NAME)
        load_parent_side(parts.plugins, discover(self.settings.plugins.paths, self.settings.base), reports)
        inbox.listen()  # an import may have set signal handlers of its own
        parts.hooks.start()
        if store is None:
            store = await self._join(registration)
        runners = await self._open_sinks(parts)
        parts.serving = serving = self._assemble(parts, store, reports, runners)
        if parts.web is not None:
            parts.web.join(store, serving.engine, parts.plugins)
        inbox.listen()  # so may a sink
        await serving.engine.recover()
        serving.engine.serve(backend)
        serving.dead_letters.look()

    async def _join(self, registration: Registration) -> Store:
        """Join the store; a drain ends if the store stays unavailable."""
        if not self._drain:
            return await registration.join()
        loop, grace = asyncio.get_running_loop(), self.settings.shutdown.grace
        giving_up: list[asyncio.TimerHandle] = []
        try:
            return await registration.join(
                lambda: giving_up.append(loop.call_later(grace, self._stop.request, "the store is unavailable"))
            )
        finally:
            for timer in giving_up:
                timer.cancel()

    async def _open_sinks(self, parts: Parts) -> list[SinkRunner]:
        """Build the sinks in a thread, since a constructor may block. Raises ConfigError with all that is wrong with them, also if one
        blocks for too long."""
        if not self.settings.dlq.active:
            return []
        builder = SinkBuilder(self.settings, parts.plugins)
        building = asyncio.get_running_loop().run_in_executor(self._executor, builder.build)
        building.add_done_callback(drop_error)
        await asyncio.wait((building,), timeout=self.settings.plugins.import_timeout)
        if errors := builder.errors_in_time(building.done()):
            if building.done():
                close_sinks(builder.sinks.values())
            raise ConfigError(errors)
        building.result()
        return [SinkRunner(name, built) for name, built in builder.sinks.items()]

    def _assemble(
        self, parts: Parts, store: Store, reports: Sequence[SourceReport], runners: Sequence[SinkRunner]
    ) -> Serving:
        loop = asyncio.get_running_loop()
        shared = self.settings.store.scheme not in IN_ONE_PROCESS
        pauses = USUAL_PAUSES if shared else NO_PAUSES
        writer = Writer(store, loop, self.bus, pauses=pauses, on_commit=self.metrics.store_committed)
        dead_letters = DeadLetterPublisher(writer, runners, self.bus, loop)
        engine = Coordinator(
            store, parts.pool, self.settings, reports, self.bus, loop, writer, random=random,
            on_dead_letter=dead_letters.look, executor=self._executor,
        )  # fmt: skip
        dead_letters.on_quiet = engine.changes.set
        engine.self_report.failing_sinks = dead_letters.failing
        engine.self_report.schedules = engine.schedules.names
        engine.self_report.store = store if isinstance(store, Reports) else None
        return Serving(engine, dead_letters)

    # serving

    async def _serve(self, parts: Parts, serving: Serving) -> None:
        _tune_the_interpreter()
        self._emit_started(parts.hooks, serving.engine)
        parts.periods = start_task(run_every(PERIOD, lambda: self._every_period(serving.engine)))
        if not self._drain:
            serving.engine.schedules.start()
        read, reloading = self._read_settings, None
        if read is not None:
            reloading = start_task(self._reloader.run(read, serving.engine, parts.forkservers))
        try:
            if self._drain:
                latest, grace = parts.registration.latest, self.settings.shutdown.grace
                drained = until_drained(serving.engine, serving.dead_letters, latest, grace)
                await self._stop.run_until_requested(drained)
                self._stop.request("drained")
            await self._stop.requested.wait()
        finally:
            if reloading is not None:
                await cancel(reloading)

    def _emit_started(self, hooks: HookRunner, engine: Coordinator) -> None:
        self.state = "running"
        engine.announce(self.state)
        pid, url = os.getpid(), Mask(self.settings.secrets)(engine.store_url)
        self.bus.emit(events.SupervisorStarted(self.owner, HOST, pid, url))
        hooks.call("supervisor_started", info={"owner": self.owner, "host": HOST, "pid": pid, "store": url})
        self._systemd.notify("READY=1")

    def _every_period(self, engine: Coordinator) -> None:
        self._systemd.notify("WATCHDOG=1")
        self._terminal.look()
        engine.maintain(self.state)

    # signals: each returns its effect as text

    def _on_hangup(self) -> str:
        if self._terminal.was_closed():
            if self._terminal.keeps_running:
                return "ignored: its terminal was closed, and it was started with nohup"
            self._stop.request("its terminal was closed")
            return f"its terminal was closed; {DRAIN}"
        if self._stop.requested.is_set():
            return f"ignored: {STOPPING}"
        self._reloader.requested.set()
        return "reload"

    def _emit_status(self, parts: Parts) -> str:
        if parts.serving is None:
            return "ignored: the supervisor has no status before it serves"
        status = parts.serving.engine.status(self.owner, self.state)
        self.bus.emit(events.StatusDumped({**status, "metrics": self.metrics.snapshot()}))
        return "status written"

    # ending

    def _store_lost(self, event: events.StoreLost) -> None:
        self._stop.fail(StoreReplaced(event.error), "the store is lost")

    async def _end(self, parts: Parts) -> tuple[ExitCode, Left]:
        self.state = "draining"
        if parts.serving is not None:
            parts.serving.engine.announce(self.state)
        reason = self._stop.reason or "it could not start"
        self.bus.emit(events.SupervisorStopping(reason))
        self._systemd.stopping(self.settings.shutdown.grace)
        parts.hooks.call("supervisor_stopping", reason=reason)
        shutdown = Shutdown(parts, self._stop, self.bus, self.settings.shutdown.grace)
        return await shutdown.run(drain=self._drain)


def _resize(steering: Steering, by: int) -> str:
    reason = steering.keeps_size()
    return f"ignored: {reason}" if reason else steering.resize(by)


def _tune_the_interpreter() -> None:
    """Search for reference cycles seldom: with thousands of leases and outcomes, none of which is in a cycle, this would take a
    tenth of the time. And switch threads fast, so that the writer's thread gets the GIL back soon after each statement."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
    sys.setswitchinterval(SWITCH_INTERVAL)
