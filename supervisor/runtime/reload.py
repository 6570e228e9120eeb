"""Read the settings and the plugins again after HUP, without dropping a job."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor

from supervisor.config.settings import Settings
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.current_config import emit_config_events
from supervisor.errors import ConfigError, NoForkserver
from supervisor.events import Bus, ConfigRefused, ConfigReloaded
from supervisor.runtime.forkservers import Forkservers
from supervisor.runtime.plugin_changes import Digests, PluginFiles, digests_of

RELOADABLE = (
    "plugins",
    "workers",
    "retry",
    "queues",
    "handlers",
    "schedules",
    "limits",
    "retention",
    "unknown_handler",
    "log",
)
FIXED = ("store", "lease", "dlq", "shutdown", "http")


class Reloader:
    """Puts new settings and plugins into use together, in a new forkserver, or refuses them together.

    `settings` are those in use; `requested` is set to reload. Files are read in a thread of `executor`, since that may block.
    """

    def __init__(self, settings: Settings, bus: Bus, executor: Executor | None = None) -> None:
        self.settings = settings
        self._store_file = _resolved(settings)
        self._plugin_files = PluginFiles(digests_of(settings))
        self.requested = asyncio.Event()
        self._bus = bus
        self._executor = executor

    async def run(self, read: Callable[[], Settings], engine: Coordinator, forkservers: Forkservers) -> None:
        """Reload at each request. A request during a reload leads to another reload, since a file may have changed meanwhile."""
        while True:
            await self.requested.wait()
            self.requested.clear()
            await self.reload(read, engine, forkservers)

    async def reload(self, read: Callable[[], Settings], engine: Coordinator, forkservers: Forkservers) -> None:
        """Use the settings that `read` returns and the plugins that they name, unless one of them has an error."""

        def read_all() -> tuple[Settings, Digests]:
            settings = read()
            return settings, digests_of(settings)

        try:
            settings, digests = await asyncio.get_running_loop().run_in_executor(self._executor, read_all)
        except ConfigError as error:
            self._bus.emit(ConfigRefused(tuple(error.errors)))
            return
        except Exception as error:  # a path in the config may raise anything, and the old settings have to stay in use
            self._bus.emit(ConfigRefused((f"it can't be read: {type(error).__name__}: {error}",)))
            return
        settings, needs_restart = self._only_reloadable(settings)
        old, new = forkservers.newest, forkservers.add(settings)
        try:
            reports = await new.start()
            broken = engine.config.newly_broken(reports)
            refused = broken or await engine.first_worker(settings, new)
        except NoForkserver as error:
            broken, refused = (), (str(error),)
        if refused:
            await forkservers.remove(new)
            self._bus.emit(ConfigRefused(refused, bool(broken)))
            return
        changed = changed_keys(self.settings, settings)
        plugins = self._plugin_files.reloaded(digests, engine.config.reports, reports)
        self.settings = settings
        emit_config_events(self._bus, reports, settings, new.schedule_misfits)
        engine.renew(settings, new, reports)
        needs_restart += tuple(f"{file} (its sinks and hooks run in the supervisor)" for file in plugins.needs_restart)
        self._bus.emit(ConfigReloaded(changed, needs_restart, plugins.files, plugins.added, plugins.removed))
        forkservers.retire(old, engine.until_gone)

    def _only_reloadable(self, new: Settings) -> tuple[Settings, tuple[str, ...]]:
        """As `only_reloadable`; the store also needs a restart if its path leads to another file now."""
        settings, needs_restart = only_reloadable(self.settings, new)
        store_file = _resolved(new)
        if store_file != self._store_file and "store" not in needs_restart:
            moved = f"store (its path leads to {store_file} now, and led to {self._store_file})"
            needs_restart = (moved, *needs_restart)
        return settings, needs_restart


def only_reloadable(old: Settings, new: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Return the new settings with the fixed sections as they were, and the names of the fixed sections that differ."""
    differing = tuple(name for name in FIXED if getattr(old, name) != getattr(new, name))
    kept = {name: getattr(old, name) for name in differing}
    return new.replace(**kept, secrets=old.secrets | new.secrets), differing


def changed_keys(old: Settings, new: Settings) -> tuple[str, ...]:
    return tuple(name for name in RELOADABLE if getattr(old, name) != getattr(new, name))


def _resolved(settings: Settings) -> str | None:
    """Return the database file of a SQLite store, which a symbolic link on its path may change."""
    return None if settings.store_file is None else os.path.realpath(settings.store_file)
