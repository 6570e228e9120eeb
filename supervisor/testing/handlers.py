"""The handlers that a test can run: those of plugins, and functions of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from supervisor.config.settings import Settings
from supervisor.errors import PluginMistake
from supervisor.events import HookFailed
from supervisor.handlers import Handler, HandlerInfo
from supervisor.jobs import Policy
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.validation import check_handler, marked_handlers, written_options
from supervisor.text.names import did_you_mean_or_all
from supervisor.workers.child.main import WorkerInfo
from supervisor.workers.child.middleware import Wrapper


class Runnable(NamedTuple):
    """A handler whose function takes a Job."""

    handler: Handler
    is_async: bool


class Handlers:
    """The handlers by name. A function of the test goes before a handler of a plugin. If neither has a name, the plugins of the
    settings are loaded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._functions: dict[str, Runnable] = {}
        self._manager = PluginManager(_raise)
        self._sources: set[str] = set()
        self._loaded_settings = self._started = False
        self.paths: list[str] = []
        """The plugins that were loaded."""

    def load(self, plugin: str) -> None:
        """Load a file, a directory or a module. Raises PluginMistake."""
        self.paths.append(plugin)
        sources = [it for it in discover([plugin], self._settings.base) if it.name not in self._sources]
        self._sources |= {source.name for source in sources}
        for report in self._manager.load_all(sources):
            if report.error is not None:
                where = f"{report.source}:{report.line}" if report.line else report.source
                raise PluginMistake(f"{where}: {report.error}\n{report.traceback}".rstrip())

    def add(self, function: Callable[..., Any]) -> None:
        """Add the handlers that @handler has made of the function. Raises PluginMistake, and ValueError if there are none."""
        marked = marked_handlers(SimpleNamespace(function=function))
        if not marked:
            raise ValueError(f"{getattr(function, '__qualname__', function)!r} is no handler: put @handler above it")
        for each in marked:
            handler, binding = check_handler(each)
            self._functions[handler.name] = Runnable(replace(handler, function=binding.call), binding.is_async)

    def find(self, name: str) -> Runnable:
        """Raises LookupError, and PluginMistake if a plugin of the settings can't be loaded."""
        if (found := self._found(name)) is not None:
            return found
        if not self._loaded_settings:
            self._loaded_settings = True
            for path in self._settings.plugins.paths:
                if path != "plugins" or (self._settings.base / path).exists():
                    self.load(path)
        if (found := self._found(name)) is not None:
            return found
        known = sorted({*self._functions, *self._manager.handlers})
        hint = did_you_mean_or_all(name, known) if known else ""
        raise LookupError(f"no handler {name!r}{hint}; load its plugin or its function: job_runner.load(...)")

    def _found(self, name: str) -> Runnable | None:
        if name in self._functions:
            return self._functions[name]
        handler = self._manager.handlers.get(name)
        return None if handler is None else Runnable(handler, self._manager.bindings[name].is_async)

    def policy(self, name: str, queue: str) -> Policy:
        """Return the policy of the jobs of a handler in a queue. Raises as `find` does."""
        info = HandlerInfo(name, written_options(self.find(name).handler), "", 0)
        return self._settings.policy(name, queue, {name: info})

    def wrappers(self) -> list[Wrapper]:
        """Return the middleware of the plugins, after their hooks at the start of a worker."""
        if not self._started and self._sources:
            self._started = True
            self._manager.call("supervisor_worker_started", worker=WorkerInfo(os.getpid(), 1))
        return self._manager.wrappers("supervisor_run")

    def close(self) -> None:
        """Call the hooks at the end of a worker, if those at its start were called."""
        if self._started:
            self._manager.call("supervisor_worker_stopping", worker=WorkerInfo(os.getpid(), 1))


def _raise(failed: HookFailed) -> None:
    raise RuntimeError(f"hook {failed.hook} of plugin {failed.plugin}: {failed.error}\n{failed.traceback}".rstrip())
