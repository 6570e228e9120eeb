"""Reads the settings and the plugins again after HUP, without a job being dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from supervisor.config.settings import Settings
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.plugin_changes import emit_plugin_events
from supervisor.errors import ConfigError, NoForkserver
from supervisor.events import Bus, ConfigRefused, ConfigReloaded
from supervisor.plugins.reports import SourceReport
from supervisor.runtime.forkservers import Forkservers
from supervisor.workers.parent.backend import ForkserverBackend

RELOADABLE = ("plugins", "workers", "retry", "queues", "handlers", "limits", "retention", "unknown_handler", "log")
FIXED = ("store", "lease", "dlq", "shutdown")


class Reloader:
    """Takes new settings and plugins over as a whole, into a forkserver of their own, or refuses them as a whole.

    `settings` are those in use; `requested` is set to reload.
    """

    def __init__(self, settings: Settings, bus: Bus) -> None:
        self.settings = settings
        self.requested = asyncio.Event()
        self._bus = bus

    async def run(self, read: Callable[[], Settings], engine: Coordinator, forkservers: Forkservers) -> None:
        """Reload at each request. One that comes during a reload leads to another, since a file may have changed meanwhile."""
        while True:
            await self.requested.wait()
            self.requested.clear()
            await self.reload(read, engine, forkservers)

    async def reload(self, read: Callable[[], Settings], engine: Coordinator, forkservers: Forkservers) -> None:
        """Take over what `read` returns and the plugins that it names."""
        try:
            settings = await asyncio.get_running_loop().run_in_executor(None, read)
        except ConfigError as error:
            self._bus.emit(ConfigRefused(tuple(error.errors)))
            return
        except Exception as error:  # a path in the config may raise anything, and the old settings have to stay in use
            self._bus.emit(ConfigRefused((f"it can't be read: {type(error).__name__}: {error}",)))
            return
        settings, needs_restart = only_reloadable(self.settings, settings)
        old, new = forkservers.newest, forkservers.add(settings)
        reports, refused = await _import_plugins(new, engine)
        if refused:
            await forkservers.remove(new)
            self._bus.emit(ConfigRefused(refused))
            return
        changed = changed_keys(self.settings, settings)
        self.settings = settings
        emit_plugin_events(self._bus, reports, settings)
        engine.renew(settings, new, reports)
        self._bus.emit(ConfigReloaded(changed, needs_restart))
        forkservers.retire(old, engine.until_gone)


async def _import_plugins(
    backend: ForkserverBackend, engine: Coordinator
) -> tuple[Sequence[SourceReport], tuple[str, ...]]:
    """Return a report of each plugin, and the reasons to refuse them, if there are any."""
    try:
        reports = await backend.start()
    except NoForkserver as error:
        return (), (str(error),)
    return reports, engine.newly_broken(reports)


def only_reloadable(old: Settings, new: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Return the new settings with the fixed sections as they were, and the names of the fixed sections that differ."""
    differing = tuple(name for name in FIXED if getattr(old, name) != getattr(new, name))
    kept = {name: getattr(old, name) for name in differing}
    return new.replace(**kept, secrets=old.secrets | new.secrets), differing


def changed_keys(old: Settings, new: Settings) -> tuple[str, ...]:
    return tuple(name for name in RELOADABLE if getattr(old, name) != getattr(new, name))
