"""Load plugins one by one, so that the failure of one does not affect the next, and call their hooks."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic  # before the plugins, which may replace it
from types import ModuleType
from typing import Any

import pluggy

from supervisor.binding import Binding
from supervisor.errors import PluginMistake
from supervisor.events import HookFailed
from supervisor.handlers import Handler, HandlerInfo, collected_marks
from supervisor.hooks import PARENT_HOOKS, PROJECT, Specs
from supervisor.plugins.discovery import Source
from supervisor.plugins.failures import described, failure_report, formatted
from supervisor.plugins.forked_copy import end_copy
from supervisor.plugins.importer import forget, import_file
from supervisor.plugins.primitives import kept_log, kept_primitives, kept_timers
from supervisor.plugins.reports import SourceReport
from supervisor.plugins.validation import (
    checked_handlers,
    implemented_hooks,
    is_async_wrapper,
    is_routine,
    location,
    marked_handlers,
    marks_of,
    not_found,
    suspicious_names,
    wrappers_of,
    wraps_async_only,
    written_options,
)


class HookCall:
    """A call of one implementation of a hook. `begun` and `ended` are monotonic seconds; `ended` is None until it has returned."""

    __slots__ = ("begun", "ended", "hook", "plugin")

    def __init__(self, hook: str, plugin: str) -> None:
        self.hook = hook
        self.plugin = plugin
        self.begun = monotonic()
        self.ended: float | None = None

    @property
    def text(self) -> str:
        return f"hook {self.hook} of plugin {self.plugin}"


class _Hooks(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        value = getattr(plugin, name, None)
        usable = is_routine(value) and not inspect.isasyncgenfunction(value)
        return super().parse_hookimpl_opts(plugin, name) if usable else None


class PluginManager:
    """The plugins of this process.

    Hooks that raise are reported to `on_error`. `reports` has a report of each source, in order; a report gets an error later
    if another source has a handler of the same name. `on_call` gets each call of a hook just before it is made.
    """

    def __init__(self, on_error: Callable[[HookFailed], None] = lambda failed: None) -> None:
        self._plugins = _Hooks(PROJECT)
        self._plugins.add_hookspecs(Specs)
        self.on_call: Callable[[HookCall], None] = lambda call: None
        self._on_error = on_error
        self._reports: dict[str, SourceReport] = {}
        self._found: dict[str, list[tuple[str, Handler, HandlerInfo]]] = {}
        self.bindings: dict[str, Binding] = {}
        """Of the handlers that were found, by name."""
        self._async_wrappers: dict[str, Callable[..., Any]] = {}
        """Of the sources that have no other wrapper, each with one of these."""
        self._seen: set[int] = set()
        self._folders: set[Path] = set()
        self._marks: dict[int, tuple[str, Handler]] = {}
        """The handlers that @handler has marked and that no module has, by id, each with the source that was imported then."""

    @property
    def hook(self) -> pluggy.HookRelay:
        return self._plugins.hook

    @property
    def reports(self) -> list[SourceReport]:
        return [self._with_late_warnings(report) for report in self._reports.values()]

    @property
    def handlers(self) -> dict[str, Handler]:
        """The handlers in use, by name; a name that two handlers have is left out."""
        return {name: handler for name, [(_, handler, _), *others] in self._found.items() if not others}

    def register(self, plugin: object, name: str) -> None:
        """Add a built-in plugin; its hooks are not checked."""
        self._plugins.register(plugin, name)

    def load(self, source: Source) -> SourceReport:
        """Import the source, and add its handlers and hooks. It never raises: the report has the error."""
        process, raised = os.getpid(), None
        try:
            with kept_timers():
                report = self._load(source)
        except BaseException as error:
            report, raised = failure_report(source, error), error
        if os.getpid() != process:  # the import forked, and this is the child, which has returned from it
            end_copy(raised)
        self._reports[source.name] = report
        for name in dict.fromkeys(info.name for info in report.handlers):
            self._stop_duplicates(name)
        return self._with_late_warnings(self._reports[source.name])

    def _with_late_warnings(self, report: SourceReport) -> SourceReport:
        """Return the report with the warnings that depend on sources loaded later."""
        lost = [
            it for source, it in self._marks.values() if source == report.source and id(it.function) not in self._seen
        ]
        late = [not_found(each) for each in lost]
        wrapper = self._async_wrappers.get(report.source)
        sync = [name for name in self.handlers if not self.bindings[name].is_async] if wrapper else []
        if sync:
            late.append(wraps_async_only(wrapper, sync))
        return replace(report, warnings=(*report.warnings, *late)) if late else report

    def load_all(self, sources: Iterable[Source]) -> list[SourceReport]:
        for source in sources:
            self.load(source)
        return self.reports

    def call(self, hook: str, **arguments: Any) -> list[Any]:
        """Call each implementation by itself, and return the results of those that did not raise."""
        return [result for _, result in self.call_each(hook, **arguments)]

    def call_each(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """Do the same as `call`, and return each result with the name of its plugin."""
        process, results = os.getpid(), []
        for implementation in getattr(self.hook, hook).get_hookimpls():
            wanted = [arguments[name] for name in implementation.argnames]
            raised, call = None, HookCall(hook, implementation.plugin_name)
            self.on_call(call)
            try:
                results.append((implementation.plugin_name, implementation.function(*wanted)))
            except BaseException as error:
                raised = error
            call.ended = monotonic()
            if os.getpid() != process:  # the hook forked, and this is the child, which has returned from it
                end_copy(raised)
            if raised is not None:
                self._on_error(HookFailed(hook, implementation.plugin_name, described(raised), formatted(raised)))
        return results

    def merged(self, hook: str) -> dict[str, Any]:
        """Merge the mappings that the implementations of a hook return; of two values under one key, the first is kept."""
        whole: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for plugin, result in self.call_each(hook):
            if not isinstance(result, Mapping):
                self._on_error(HookFailed(hook, plugin, f"expected a mapping, got {result!r}", ""))
                continue
            for key, value in result.items():
                if origin.setdefault(key, plugin) != plugin:
                    self._on_error(HookFailed(hook, plugin, f"{key!r} is already defined by {origin[key]}", ""))
                whole.setdefault(key, value)
        return whole

    def wrappers(self, hook: str) -> list[Callable[..., Any]]:
        """Return the implementations of a hook for wrappers, each as a function of one argument; the first is innermost."""
        found = getattr(self.hook, hook).get_hookimpls()
        pairs = [(getattr(one.function, _STANDS_FOR, one.function), (*one.argnames, *one.kwargnames)) for one in found]
        return [function if arguments else _for_any(function) for function, arguments in pairs]

    def _load(self, source: Source) -> SourceReport:
        with collected_marks() as marks:
            plugin = self._import(source)
        self._marks |= {id(handler): (source.name, handler) for handler in marks}
        for found in self._marks.keys() & marks_of(plugin):
            del self._marks[found]
        hooks = implemented_hooks(plugin)
        handlers, mistake = checked_handlers(self._new_handlers(plugin, hooks))
        infos = [_info(handler, binding, source, plugin) for handler, binding in handlers]
        self._plugins.register(plugin, source.name)
        wrappers = wrappers_of(plugin)
        if only_async := [each for each in wrappers if is_async_wrapper(each)]:
            self._plugins.register(_StandIns(only_async), f"{source.name} (async)")
            if len(only_async) == len(wrappers):
                self._async_wrappers[source.name] = only_async[0]
        for (handler, binding), info in zip(handlers, infos, strict=True):
            self._seen.add(id(handler.function))
            bound = replace(handler, function=binding.call)
            self.bindings[handler.name] = binding
            self._found.setdefault(handler.name, []).append((source.name, bound, info))
        error, line = (None, None) if mistake is None else (str(mistake), mistake.line)
        warnings = tuple(suspicious_names(plugin))
        return SourceReport(source.name, tuple(infos), tuple(hooks), error=error, line=line, warnings=warnings)

    def _new_handlers(self, plugin: object, hooks: Sequence[str]) -> list[object]:
        """Return the handlers of a source without those of earlier sources: a file may import a handler from another file."""
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
            forget(folder)
            self._folders.add(folder)
        return import_file(path)

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


def load_parent_side(
    manager: PluginManager,
    sources: Iterable[Source],
    reports: Iterable[SourceReport],
    hooks: frozenset[str] = PARENT_HOOKS,
) -> list[SourceReport]:
    """Load only the sources in which the forkserver has found some of these hooks: their import is known to be safe."""
    wanted = {report.source for report in reports if hooks.intersection(report.hooks)}
    with kept_primitives(), kept_log():
        return [manager.load(source) for source in sources if source.name in wanted]


_RUN = "supervisor_run"
_STANDS_FOR = "stands_for"


class _StandIns:
    """A plugin that has a generator function in place of each async generator function, which pluggy does not accept as a wrapper."""

    def __init__(self, wrappers: Iterable[Callable[..., Any]]) -> None:
        for number, wrapper in enumerate(wrappers):
            setattr(self, f"{_RUN}_{number}", _stand_in(wrapper))


def _stand_in(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(wrapper)
    def stand_in(*_arguments: Any) -> Any:
        yield

    mark = f"{PROJECT}_impl"
    vars(stand_in).update({_STANDS_FOR: wrapper, mark: {**vars(wrapper)[mark], "specname": _RUN}})
    return stand_in


def _for_any(function: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(_argument: Any) -> Any:
        return function()

    return called


def _check_readable(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise PluginMistake(f"dangling symbolic link to {path.readlink()}")
    if not path.is_file():
        raise PluginMistake("not a regular file")
    try:
        path.open("rb").close()
    except OSError as error:
        raise PluginMistake(f"can't be read: {error.strerror}") from None


def _info(handler: Handler, binding: Binding, source: Source, plugin: object) -> HandlerInfo:
    file, line = location(handler.function)
    file = file or (str(source.path) if source.path else getattr(plugin, "__file__", None)) or source.name
    return HandlerInfo(handler.name, written_options(handler), file, line or 0, binding.schema(), binding.is_async)
