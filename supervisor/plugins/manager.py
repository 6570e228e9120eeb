"""Finds, loads and isolates plugins: directories, files, modules, entry points."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from supervisor.errors import PluginMistake
from supervisor.events import HookFailed
from supervisor.handlers import Handler, HandlerInfo
from supervisor.hooks import PARENT_HOOKS, PROJECT, Specs
from supervisor.plugins import importer as plugin_modules
from supervisor.plugins.discovery import Source
from supervisor.plugins.reports import SourceReport
from supervisor.plugins.validation import (
    check_handler,
    implemented_hooks,
    is_routine,
    location,
    marked_handlers,
    suspicious_names,
    written_options,
)
from supervisor.text.printable import printable, shortened

MAX_TEXT = 64 * 1024  # characters of an error, and of a traceback


# --- finding


# --- loading


class _Hooks(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        return super().parse_hookimpl_opts(plugin, name) if is_routine(getattr(plugin, name, None)) else None


class PluginManager:
    """Plugins loaded one by one, none of which can hurt the next.

    `on_error` is told of hooks that raise. `reports` holds what became of each source, in order; a report may gain an
    error later, when another source brings a handler of the same name.
    """

    def __init__(self, on_error: Callable[[HookFailed], None] = lambda failed: None) -> None:
        self._plugins = _Hooks(PROJECT)
        self._plugins.add_hookspecs(Specs)
        self._on_error = on_error
        self._reports: dict[str, SourceReport] = {}
        self._found: dict[str, list[tuple[str, Handler, HandlerInfo]]] = {}
        self._seen: set[int] = set()
        self._folders: set[Path] = set()

    @property
    def hook(self) -> pluggy.HookRelay:
        return self._plugins.hook

    @property
    def reports(self) -> list[SourceReport]:
        return list(self._reports.values())

    @property
    def handlers(self) -> dict[str, Handler]:
        """Handlers that serve, by name; those of a name brought twice are left out."""
        return {name: found[0][1] for name, found in self._found.items() if len(found) == 1}

    @property
    def infos(self) -> dict[str, HandlerInfo]:
        return {name: found[0][2] for name, found in self._found.items() if len(found) == 1}

    def register(self, plugin: object, name: str) -> None:
        """A built-in: a module or object with hooks that are known to be right."""
        self._plugins.register(plugin, name)

    def load(self, source: Source) -> SourceReport:
        """Import the source and take what it brings. Never raises, whatever the import does short of ending the process."""
        process = os.getpid()
        try:
            report = self._load(source)
        except BaseException as error:
            report = _failure(source, error)
        if os.getpid() != process:  # the import forked, and this is the copy that came back from it
            os._exit(0)
        self._reports[source.name] = report
        for name in dict.fromkeys(info.name for info in report.handlers):
            self._stop_duplicates(name)
        return self._reports[source.name]

    def load_all(self, sources: Iterable[Source]) -> list[SourceReport]:
        for source in sources:
            self.load(source)
        return self.reports

    def call(self, hook: str, **arguments: Any) -> list[Any]:
        """Call each implementation by itself; gives the results of those that returned, the others are reported."""
        return [result for _, result in self.call_each(hook, **arguments)]

    def merged(self, hook: str) -> dict[str, Any]:
        """The mappings that a hook's implementations give, as one; of two values under one key the first stays."""
        whole: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for plugin, result in self.call_each(hook):
            if not isinstance(result, Mapping):
                self._report_hook(hook, plugin, f"expected a mapping, got {result!r}")
                continue
            for key, value in result.items():
                if origin.setdefault(key, plugin) != plugin:
                    self._report_hook(hook, plugin, f"{key!r} is already brought by {origin[key]}")
                whole.setdefault(key, value)
        return whole

    def call_each(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """As `call`, each result with the name of its plugin."""
        results = []
        for implementation in getattr(self._plugins.hook, hook).get_hookimpls():
            wanted = [arguments[name] for name in implementation.argnames]
            try:
                results.append((implementation.plugin_name, implementation.function(*wanted)))
            except BaseException as error:
                self._report_hook(hook, implementation.plugin_name, _describe(error), _format(error))
        return results

    def wrappers(self, hook: str) -> list[Callable[..., Any]]:
        """The implementations of a hook of one argument that is for wrappers only, by that argument; the first is innermost."""
        found = getattr(self._plugins.hook, hook).get_hookimpls()
        return [one.function if (*one.argnames, *one.kwargnames) else _for_any(one.function) for one in found]

    def _report_hook(self, hook: str, plugin: str, error: str, trace: str = "") -> None:
        self._on_error(HookFailed(hook, plugin, error, trace))

    def _load(self, source: Source) -> SourceReport:
        plugin = self._import(source)
        hooks = implemented_hooks(plugin)
        handlers = [check_handler(described) for described in self._brought(plugin, hooks)]
        infos = [_info(described, source, plugin) for described in handlers]
        self._plugins.register(plugin, source.name)
        for described, info in zip(handlers, infos, strict=True):
            self._seen.add(id(described.function))
            self._found.setdefault(described.name, []).append((source.name, described, info))
        return SourceReport(source.name, tuple(infos), tuple(hooks), warnings=tuple(suspicious_names(plugin)))

    def _brought(self, plugin: object, hooks: Sequence[str]) -> list[object]:
        """Handlers of this source that no earlier one brought: a file may import a handler from the file beside it."""
        brought: list[object] = list(marked_handlers(plugin))
        if "supervisor_handlers" in hooks:
            brought.extend(plugin.supervisor_handlers())  # type: ignore[attr-defined]
        return [one for one in brought if id(getattr(one, "function", one)) not in self._seen]

    def _import(self, source: Source) -> object:
        if source.path is not None:
            return self._import_file(source.path)
        if source.entry is not None:
            return source.entry.load()
        if source.module is None:
            raise PluginMistake(source.problem or "nothing to load")
        try:
            module = importlib.import_module(source.module)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{source.module}.".startswith(f"{error.name}."):
                raise PluginMistake(source.problem or str(error)) from None
            raise
        if getattr(module, "__file__", None) is None:  # any folder on sys.path is a namespace package
            raise PluginMistake(source.problem or "no file")
        return module

    def _import_file(self, path: Path) -> ModuleType:
        _check_readable(path)
        folder = path.parent.parent if path.name == "__init__.py" else path.parent
        if folder not in self._folders:
            plugin_modules.forget(folder)
            self._folders.add(folder)
        return plugin_modules.import_file(path)

    def _stop_duplicates(self, name: str) -> None:
        found = self._found[name]
        if len(found) < 2:
            return
        for source, _, info in found:
            others = [f"{other.file}:{other.line}" for _, _, other in found if other is not info]
            report = self._reports[source]
            self._reports[source] = replace(
                report,
                handlers=tuple(kept for kept in report.handlers if kept.name != name),
                error=f"two handlers are named {name!r}, so neither serves: here and in {', '.join(others)}",
                line=info.line,
            )


def _for_any(function: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(_argument: Any) -> Any:
        return function()

    return called


def load_parent_side(
    manager: PluginManager,
    sources: Iterable[Source],
    reports: Iterable[SourceReport],
    hooks: frozenset[str] = PARENT_HOOKS,
) -> list[SourceReport]:
    """Load only those sources that a nursery has imported safely and found some of these hooks in."""
    wanted = {report.source for report in reports if hooks.intersection(report.hooks)}
    return [manager.load(source) for source in sources if source.name in wanted]


def _check_readable(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise PluginMistake(f"dangling symbolic link to {path.readlink()}")
    if not path.is_file():
        raise PluginMistake("not a regular file")
    try:
        path.open("rb").close()
    except OSError as error:
        raise PluginMistake(f"can't be read: {error.strerror}") from None


def _info(described: Handler, source: Source, plugin: object) -> HandlerInfo:
    file, line = location(described.function)
    return HandlerInfo(
        described.name, written_options(described), file or _file_of(source, plugin) or source.name, line or 0
    )


def _file_of(source: Source, plugin: object) -> str | None:
    return str(source.path) if source.path else getattr(plugin, "__file__", None)


def _failure(source: Source, error: BaseException) -> SourceReport:
    if isinstance(error, PluginMistake):
        return SourceReport(source.name, error=_bounded(str(error)), line=error.line)
    try:
        file = str(source.path) if source.path else _file_of_module(source)
        line, trace = _blame(error, file)
        return SourceReport(source.name, error=_bounded(_describe(error)), line=line, traceback=_bounded(trace))
    except Exception as second:  # an exception's own attributes may be anything
        what = f"{type(error).__name__}: <no message: asking for it raised {type(second).__name__}>"
        return SourceReport(source.name, error=printable(what))


def _bounded(text: str) -> str:
    return shortened(printable(text), MAX_TEXT)


def _file_of_module(source: Source) -> str | None:
    name = source.module or (source.entry.module if source.entry else None)
    with contextlib.suppress(BaseException):  # a parent package is imported by this, and may do anything
        spec = importlib.util.find_spec(name) if name else None
        return spec.origin if spec else None
    return None


def _blame(error: BaseException, file: str | None) -> tuple[int | None, str]:
    """The line of the plugin file where the error came up, and the traceback."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return (error.lineno if type(error.lineno) is int else None), _format(error)
    steps = traceback.extract_tb(error.__traceback__)
    return next((step.lineno for step in reversed(steps) if step.filename == file), None), _format(error)


def _describe(error: BaseException) -> str:
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return f"it raised {type(error).__name__}, but a plugin must not end the program"
    message = " ".join(str(traceback.TracebackException.from_exception(error, limit=0)).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _format(error: BaseException) -> str:
    """The traceback, without the frames of importing."""
    told = traceback.TracebackException.from_exception(error)
    _hide_machinery(told)
    return plugin_modules.readable("".join(told.format()))


def _hide_machinery(told: traceback.TracebackException) -> None:
    waiting = [told]  # a chain may be longer than the interpreter recurses
    while waiting:
        one = waiting.pop()
        one.stack[:] = [
            frame
            for frame in one.stack
            if frame.filename != __file__ and not plugin_modules.is_machinery(frame.filename)
        ]
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
