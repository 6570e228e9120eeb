"""The supervisor's life: start, serve, drain, end."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import IntEnum
from random import random
from typing import Any

from supervisor.config.settings import Settings
from supervisor.dead_letters.built_in import BuiltInSinks
from supervisor.dead_letters.opening import open_sinks
from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.engine.coordinator import Engine
from supervisor.engine.plugin_changes import emit_plugin_events
from supervisor.engine.store_writer import Writer
from supervisor.errors import ConfigError, NoForkserver, StoreBroken, StoreUnavailable
from supervisor.events import (
    Bus,
    ConfigRefused,
    ConfigReloaded,
    HookFailed,
    StatusDumped,
    StoreBecameUnavailable,
    Subscriber,
    SupervisorStarted,
    SupervisorStopped,
    SupervisorStopping,
)
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager, load_parent_side
from supervisor.plugins.reports import SourceReport
from supervisor.runtime.drain import until_drained
from supervisor.runtime.hook_runner import HookThread
from supervisor.runtime.periodic_timer import run_every
from supervisor.runtime.reload import changed_keys, only_reloadable
from supervisor.runtime.signals import SignalInbox, StopRequest
from supervisor.runtime.systemd import Notifier
from supervisor.stores.opening import BUILT_IN, open_store, retry_while_unavailable
from supervisor.stores.protocol import Store
from supervisor.telemetry.metrics import Metrics
from supervisor.text.redaction import Mask
from supervisor.workers.blame import HOST
from supervisor.workers.interface import WorkerOptions
from supervisor.workers.parent.adopted_orphans import end_programs_of
from supervisor.workers.parent.backend import ForkserverBackend
from supervisor.workers.pool import Pool

SWITCH = 0.00002  # seconds
GARBAGE = 50_000  # objects more than there were
PERIOD = 1.0
JOIN_AGAIN = 0.2
FLUSH_SECONDS = 5.0
FORCED_SECONDS = 1.0
DEAD_LETTERS_SECONDS = 2.0


class ExitCode(IntEnum):
    DRAINED = 0
    FATAL = 1
    MISTAKE = 2
    FORCED = 3
    LEFT_BEHIND = 4


class Supervisor:
    """One run of one supervisor.

    `reload` gives the settings anew at HUP; `drain` ends the run once the served queues have nothing left (due within
    `horizon` seconds of the start, if given). `run` blocks and gives the exit code; it raises ConfigError and StoreError for
    what the user can mend before anything has started.
    """

    def __init__(
        self, settings: Settings, *, reload: Callable[[], Settings] | None = None, drain: bool = False,
        horizon: float | None = None, subscribers: Sequence[Subscriber] = (),
    ) -> None:  # fmt: skip
        self.settings = settings
        self.owner = f"{HOST}-{os.getpid()}-{secrets.token_hex(8)}"
        self.state = "starting"
        self._reload = reload
        self._drain = drain
        self._horizon = horizon
        self._latest: float | None = None  # what is due later is left; by the store's clock
        self._bus = Bus()
        self._notifier = Notifier()
        self.metrics = Metrics()
        self._reloading: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._fatal: BaseException | None = None
        self._stray = 0
        self._bus.subscribe(self.metrics)
        for subscriber in subscribers:
            self._bus.subscribe(subscriber)

    def run(self) -> int:
        return asyncio.run(self._run())

    async def _run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_exception)
        self._stop = StopRequest()
        self._reload_asked = asyncio.Event()
        workers = self.settings.workers
        self._pool = Pool(
            workers.count, self._bus, self._loop, max_jobs=workers.max_jobs, max_memory=workers.max_memory
        )
        self._inbox = SignalInbox(self._loop, self._stop, self._signals())
        self.plugins = PluginManager(self._hook_failed)
        self._hooks: HookThread | None = None
        self._store: Store | None = None
        self._engine: Engine | None = None
        self._backend: list[ForkserverBackend] = []  # the newest last; those before it are ending
        self._joining: asyncio.Future[int | None] | None = None
        self._periodic: asyncio.Task[None] | None = None
        self._dead_letters: DeadLetterPublisher | None = None
        try:
            await self._until_asked(self._start())
            if not self._stop.asked.is_set():
                await self._serve()
        finally:
            code, remaining = await self._end()
            self._inbox.close()
        self._bus.emit(SupervisorStopped(code, remaining))
        return code

    def _signals(self) -> dict[signal.Signals, Callable[[], None]]:
        return {
            signal.SIGHUP: self._reload_asked.set,
            signal.SIGUSR1: self._dump_status,
            signal.SIGTTIN: lambda: self._resize(+1),
            signal.SIGTTOU: lambda: self._resize(-1),
        }

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault of our own: better to end and be started again, with every lease recovered, than to stand still."""
        self._fatal = self._fatal or context.get("exception") or RuntimeError(context["message"])
        loop.default_exception_handler(context)
        self._stop.ask("internal error")
        self._stop.forced.set()

    def _hook_failed(self, event: HookFailed) -> None:
        self._loop.call_soon_threadsafe(self._bus.emit, event)

    async def _until_asked(self, start: Any) -> None:
        """Run it, unless a stop is asked for first."""
        work, asked = asyncio.ensure_future(start), asyncio.ensure_future(self._stop.asked.wait())
        await asyncio.wait((work, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait((work,))
        if not work.cancelled():
            work.result()

    # starting

    async def _start(self) -> None:
        built_in = self.settings.store.scheme in BUILT_IN
        owner_fd = await self._join() if built_in else None
        backend = self._make_children(self.settings, owner_fd)
        self._backend.append(backend)
        reports = await backend.start()
        emit_plugin_events(self._bus, reports, self.settings)
        self._load_parent_side(self.settings, reports)
        if not built_in:
            await self._join()
        await self._assemble(backend, reports)

    async def _join(self) -> int | None:
        """Open the store and register this owner; on a thread, for a store may block. While it is away, again and again."""
        unavailable = False
        while True:
            self._joining = self._loop.run_in_executor(None, self._join_now)
            self._joining.add_done_callback(_note_error)  # told to end meanwhile, nobody else asks for it
            await asyncio.wait((self._joining,))  # a shield tells the loop's handler of what is raised after a cancel
            try:
                return self._joining.result()
            except StoreBroken:
                raise
            except StoreUnavailable as error:
                if not unavailable:
                    self._bus.emit(StoreBecameUnavailable(str(error)))
                unavailable = True
            await asyncio.sleep(JOIN_AGAIN)

    def _join_now(self) -> int | None:
        settings, base = self.settings.store, self.settings.base
        if self._store is None:
            openers = {} if settings.scheme in BUILT_IN else self.plugins.merged("supervisor_stores")
            self._store = open_store(settings, create=True, base=base, openers=openers)
            self._store.on_owner_gone = end_programs_of
        if self._horizon is not None and self._latest is None:
            self._latest = self._store.clock() + self._horizon
        return self._store.join(self.owner, HOST, os.getpid())

    def _make_children(self, settings: Settings, owner_fd: int | None) -> ForkserverBackend:
        workers = settings.workers
        self._owner_fd = owner_fd
        heartbeats = {
            name: handler.heartbeat for name, handler in settings.handlers.items() if handler.heartbeat is not None
        }
        options = WorkerOptions(
            plugins=settings.plugins.paths,
            base=str(settings.base),
            variables=settings.variables,
            import_timeout=settings.plugins.import_timeout,
            start=workers.start,
            heartbeat=workers.heartbeat,
            heartbeats=heartbeats,
            result_limit=settings.limits.result,
            owner=self.owner,
            owner_fd=owner_fd,
        )
        return ForkserverBackend(options, self._pool, self._loop)

    def _load_parent_side(self, settings: Settings, reports: Sequence[SourceReport]) -> None:
        self.plugins.register(BuiltInSinks(), "supervisor.dead_letters.built_in")
        load_parent_side(self.plugins, discover(settings.plugins.paths, settings.base), reports)
        self._inbox.listen()  # an import may have set signals of its own
        self._hooks = HookThread(self.plugins, self._bus, self._loop.call_soon_threadsafe)

    async def _assemble(self, backend: ForkserverBackend, reports: Sequence[SourceReport]) -> None:
        assert self._store is not None
        runners = open_sinks(self.settings, self.plugins)
        writer = Writer(self._store, self._loop, self._bus)
        self._engine = Engine(
            self._store, self._pool, self.settings, reports, self._bus, self._loop, writer, random=random
        )
        if self._drain:
            self._engine.unknown_jobs = set()
        self._dead_letters = DeadLetterPublisher(writer, runners, self._bus, self._loop)
        self._engine.on_dead_letter = self._dead_letters.look
        self._dead_letters.on_quiet = self._engine.changes.set
        await self._engine.recover()
        self._engine.serve(backend)
        self._dead_letters.look()

    # serving

    async def _serve(self) -> None:
        assert self._engine is not None and self._hooks is not None and self._dead_letters is not None
        _tune_the_interpreter()
        self.state = "running"
        url = Mask(self.settings.secrets)(self._engine.store_url)
        self._bus.emit(SupervisorStarted(self.owner, HOST, os.getpid(), url))
        self._hooks.call(
            "supervisor_started", info={"owner": self.owner, "host": HOST, "pid": os.getpid(), "store": url}
        )
        self._notifier.tell("READY=1")
        self._periodic = self._keep(run_every(PERIOD, self._every_period))  # goes on until the leases are settled
        if self._reload is not None:
            self._reloading = self._keep(self._reload_when_asked(self._reload))
        if self._drain:
            drained = until_drained(self._engine, self._dead_letters, self._latest, self.settings.shutdown.grace)
            await self._until_asked(drained)
            self._stop.ask("drained")
        await self._stop.asked.wait()

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of the supervisor's own; a fault in it is told at once."""
        task = self._loop.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._loop.call_exception_handler({"message": "a task of the supervisor failed", "exception": error})

    def _every_period(self) -> None:
        assert self._engine is not None
        self._notifier.tell("WATCHDOG=1")
        self._engine.tick(self.state)

    # what signals ask for

    def _resize(self, by: int) -> None:
        if not self._stop.asked.is_set():
            self._pool.resize(max(1, self._pool.count + by))

    def _dump_status(self) -> None:
        if self._engine is not None:
            status = self._engine.status(self.owner, self.state)
            self._bus.emit(StatusDumped({**status, "metrics": self.metrics.snapshot()}))

    async def _reload_when_asked(self, reload: Callable[[], Settings]) -> None:
        """One at a time; asked meanwhile, once more, for the files may have changed since they were read."""
        while True:
            await self._reload_asked.wait()
            self._reload_asked.clear()
            await self._reload_now(reload)

    async def _reload_now(self, reload: Callable[[], Settings]) -> None:
        """Handlers, retry, queues, workers and log settings anew in a second nursery; refused as a whole, or taken as a whole."""
        assert self._engine is not None
        try:
            settings = await self._loop.run_in_executor(None, reload)
        except ConfigError as error:
            self._bus.emit(ConfigRefused(tuple(error.errors)))
            return
        except Exception as error:  # whatever a path in it may make of itself: what serves goes on serving
            self._bus.emit(ConfigRefused((f"it can't be read: {type(error).__name__}: {error}",)))
            return
        settings, needs_restart = only_reloadable(self.settings, settings)
        backend = self._make_children(settings, self._owner_fd)
        self._backend.append(backend)
        reports, refused = await self._import_again(backend)
        if refused:
            self._backend.remove(backend)
            await backend.stop()
            self._bus.emit(ConfigRefused(refused))
            return
        changed = changed_keys(self.settings, settings)
        self.settings = settings
        emit_plugin_events(self._bus, reports, self.settings)
        self._engine.renew(settings, backend, reports)
        self._bus.emit(ConfigReloaded(changed, needs_restart))
        self._let_retire(self._backend[-2])

    async def _import_again(self, backend: ForkserverBackend) -> tuple[Sequence[SourceReport], tuple[str, ...]]:
        """What the second nursery found, and why what serves now must go on serving, if it must."""
        assert self._engine is not None
        try:
            reports = await backend.start()
        except NoForkserver as error:
            return (), (str(error),)
        return reports, self._engine.newly_broken(reports)

    def _let_retire(self, old: ForkserverBackend) -> None:
        task = self._keep(self._end_with_its_workers(old))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _end_with_its_workers(self, old: ForkserverBackend) -> None:
        assert self._engine is not None
        await self._engine.until_gone(old)
        await old.stop()
        self._backend.remove(old)

    # ending

    async def _end(self) -> tuple[int, dict[str, int]]:
        """Whatever was started is ended, however far the start came."""
        self.state = "draining"
        reason = self._stop.reason or "it could not start"
        self._bus.emit(SupervisorStopping(reason))
        self._notifier.tell("STOPPING=1")
        if self._reloading is not None:
            self._reloading.cancel()
            await asyncio.wait((self._reloading,))
        if self._hooks is not None:
            self._hooks.call("supervisor_stopping", reason=reason)
        remaining: dict[str, int] = {}
        flushed = settled = True
        if self._engine is not None:
            await self._engine.drain(self.settings.shutdown.grace, self._stop.forced)
            flushed = await self._settle_all(self._engine)
            if not flushed:
                remaining = self._told_unsettled(self._engine)
            if self._dead_letters is not None:
                await self._stop_publishing(self._dead_letters, flushed)
            if flushed and self._engine.committer.unsettled:
                await self._wait_for(self._engine.committer.finish(tries=1))  # it has been tried on meanwhile, too
                if self._engine.committer.unsettled:
                    settled, remaining = False, self._told_unsettled(self._engine)
            if self._drain and flushed and settled:
                await self._prune(self._engine)
                asked = asyncio.ensure_future(self._engine.remaining(self._latest))
                flushed = await self._wait_for(asked)  # the store may have gone away just now
                remaining = asked.result() if flushed else {}
        await self._close(flushed)
        return self._exit_code(flushed and settled, remaining), remaining

    async def _settle_all(self, engine: Engine) -> bool:
        """However much it is, as long as the store takes some of it."""
        while True:
            before = engine.committer.batches_settled
            if await self._wait_for(engine.settle_all()):
                return True
            if self._stop.forced.is_set() or engine.committer.batches_settled == before:
                return False

    def _told_unsettled(self, engine: Engine) -> dict[str, int]:
        """What the store has not taken, which others recover when its leases end; and why, if nobody has said so yet."""
        if not engine.writer.unavailable and not engine.committer.unsettled:
            assert self._store is not None
            self._bus.emit(StoreBecameUnavailable(f"{self._store.url}: it has not answered at the end"))
        return {"unsettled": len(engine.leases)} if len(engine.leases) else {}

    async def _prune(self, engine: Engine) -> None:
        """Whoever runs nothing but short drains would otherwise never do it. Who is told to end waits for nothing of the kind."""
        if self._stop.told.is_set():
            return
        pruning, told = asyncio.ensure_future(engine.prune()), asyncio.ensure_future(self._stop.told.wait())
        await asyncio.wait((pruning, told), timeout=FLUSH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if pruning.done():
            pruning.result()
        else:
            pruning.cancel()
            await asyncio.wait((pruning,))

    async def _stop_publishing(self, dead_letters: DeadLetterPublisher, flushed: bool) -> None:
        if flushed and not self._stop.forced.is_set():
            await self._wait_for(dead_letters.settle_down(), DEAD_LETTERS_SECONDS)
        stopped = await self._wait_for(dead_letters.stop(), FLUSH_SECONDS if flushed else FORCED_SECONDS)
        await self._wait_for(dead_letters.close(), FLUSH_SECONDS if stopped else FORCED_SECONDS)

    async def _wait_for(self, work: Awaitable[Any], seconds: float = FLUSH_SECONDS) -> bool:
        """Wait for a store, a sink or a hook at the end; False if it did not end in time. A second signal cuts it short."""
        task, forced = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.forced.wait())
        await asyncio.wait((task, forced), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if forced.done():
            await asyncio.wait((task,), timeout=min(seconds, FORCED_SECONDS))
        forced.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            return False
        task.result()
        return True

    async def _close(self, flushed: bool) -> None:
        await self._end_retiring()
        for backend in self._backend:
            await backend.stop()
        if self._periodic is not None:
            self._periodic.cancel()
        if self._joining is not None:
            await self._wait_for(asyncio.wait((self._joining,)))
        if self._engine is not None:
            await self._wait_for(self._engine.close(FLUSH_SECONDS if flushed else 0.0), 2 * FLUSH_SECONDS)
        elif self._store is not None:
            await self._loop.run_in_executor(None, _leave, self._store)
        if self._hooks is not None:
            await self._wait_for(self._hooks.stop())

    async def _end_retiring(self) -> None:
        """Whichever old nursery takes too long for its workers is stopped with the rest."""
        if self._retiring and not await self._wait_for(asyncio.wait(self._retiring)):
            retiring = [*self._retiring]
            for task in retiring:
                task.cancel()
            await asyncio.wait(retiring)

    def _exit_code(self, settled: bool, remaining: dict[str, int]) -> int:
        never_began = self._drain and self._engine is None
        if self._fatal is not None or not settled or never_began:
            return ExitCode.FATAL
        if self._stop.forced.is_set():
            return ExitCode.FORCED
        return ExitCode.LEFT_BEHIND if remaining else ExitCode.DRAINED


def _tune_the_interpreter() -> None:
    """Thousands of leases and outcomes come and go, none of them in a cycle: to look for cycles among them at every few
    hundred costs a tenth of the time. And the writer's thread gets the interpreter back at once after each statement."""
    gc.freeze()
    gc.set_threshold(GARBAGE)
    sys.setswitchinterval(SWITCH)


def _note_error(work: asyncio.Future[Any]) -> None:
    """asyncio writes a traceback of an error that nobody has asked for."""
    if not work.cancelled():
        work.exception()


def _leave(store: Store) -> None:
    try:
        retry_while_unavailable(store.leave, FLUSH_SECONDS)
    except StoreUnavailable:
        pass  # nothing was claimed: whoever comes next forgets this owner
    finally:
        store.close()
