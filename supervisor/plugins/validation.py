"""Check the handlers and hooks of a plugin. Each mistake names the handler or hook, and what was expected."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, CodeType, MethodType, MethodWrapperType, ModuleType
from typing import Any

from supervisor.binding import Binding, bind
from supervisor.config.schedules import of_handler
from supervisor.config.settings import HandlerSettings
from supervisor.errors import PluginMistake
from supervisor.handlers import MARK, Handler
from supervisor.hooks import PROJECT, Specs
from supervisor.jobs import Job
from supervisor.plugins.decorators import function_below
from supervisor.text.names import NAME, did_you_mean, is_name
from supervisor.text.strict_json import MAX_INTEGER

_PREFIX = f"{PROJECT}_"
HOOKS = {name: spec for name, spec in vars(Specs).items() if name.startswith(_PREFIX)}

_WRAPPED = "supervisor_run"
_MARK_OF_HOOK = f"{PROJECT}_impl"
_OPTIONS = [key for key in HandlerSettings.known if key in Handler.__slots__]


def location(function: Any) -> tuple[str | None, int | None]:
    """Return the file and the line of a function inside its decorators; None for each if it has no Python code."""
    try:
        code = getattr(inspect.unwrap(function), "__code__", None)
    except ValueError:
        code = None
    return (code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else (None, None)


# --- handlers


def marked_handlers(module: object) -> list[Handler]:
    """Return the handlers of all functions in the module, defined or imported there, each once."""
    found: dict[int, Handler] = {}
    for value in list(vars(module).values()):
        if is_routine(value):
            for handler in getattr(value, "__dict__", {}).get(MARK, ()):
                found.setdefault(id(handler), _outermost(handler, value))
    return list(found.values())


def marks_of(module: object) -> set[int]:
    """Return the ids of the handlers that @handler has set on functions of the module."""
    values = [value for value in list(vars(module).values()) if is_routine(value)]
    return {id(handler) for value in values for handler in getattr(value, "__dict__", {}).get(MARK, ())}


def not_found(handler: Handler) -> str:
    """Return a warning about a mark that is on no function of a module."""
    name, (_, line) = getattr(handler.function, "__qualname__", handler.name), location(handler.function)
    outside, _, _ = name.rpartition(".")
    if isinstance(handler.function, staticmethod | classmethod) or (outside and not outside.endswith("<locals>")):
        why = "it is a method of a class"
    elif outside:
        why = f"it is inside of the function {outside.removesuffix('.<locals>')}"
    else:
        why = "no name of the module leads to it, for example below a decorator that is made without functools.wraps"
    where = f" (line {line})" if line else ""
    return f"@handler on {name}{where} has no effect: {why}; put it on a function of the module, above other decorators"


def checked_handlers(handlers: Iterable[object]) -> tuple[list[tuple[Handler, Binding]], PluginMistake | None]:
    """Return the handlers that can be used, each with its binding, and one mistake that names all others."""
    good, mistakes = [], []
    for handler in handlers:
        try:
            good.append(check_handler(handler))
        except PluginMistake as mistake:
            mistakes.append(mistake)
    return good, _together(mistakes)


def _together(mistakes: Sequence[PluginMistake]) -> PluginMistake | None:
    if not mistakes:
        return None
    first, *others = mistakes
    texts = [str(first), *(f"line {it.line}: {it}" if it.line else str(it) for it in others)]
    return PluginMistake("; ".join(texts), first.line)


def is_routine(value: object) -> bool:
    """Do the same as inspect.isroutine without reading `__class__`: a framework's lazy object might connect then, or raise."""
    kind = type(value)
    descriptor = hasattr(kind, "__get__") and not hasattr(kind, "__set__") and not issubclass(kind, type)
    return descriptor or issubclass(kind, BuiltinFunctionType | MethodType | MethodWrapperType)


def _outermost(handler: Handler, function: Callable[[Job], Any]) -> Handler:
    """Return the handler with `function`, if this is a decorator above @handler: functools.wraps has copied the mark to it."""
    if handler.function is function or getattr(function, "__wrapped__", None) is None:
        return handler
    return replace(handler, function=function)


def check_handler(handler: object) -> tuple[Handler, Binding]:
    """Return the handler and its binding. Raises a PluginMistake that names the handler, the option and what was expected."""
    if not isinstance(handler, Handler):
        raise PluginMistake(f"supervisor_handlers(): expected Handler objects, got {handler!r}")
    line = location(handler.function)[1]
    try:
        if not is_name(handler.name):
            raise ValueError(f"expected {NAME}")
        is_async = _is_async(handler.function)
        _check_options(handler)
        return handler, bind(handler.function, is_async=is_async)
    except (ValueError, TypeError) as error:
        raise PluginMistake(f"handler {handler.name!r}: {error}", line) from None


def written_options(handler: Handler) -> dict[str, Any]:
    """Return the options that were written, as plain JSON values."""
    options = _written(handler)
    if handler.priority is not None:
        options["priority"] = handler.priority
    if handler.schedule is not None:
        options["schedule"] = {"cron": handler.schedule} if isinstance(handler.schedule, str) else handler.schedule
    if handler.never_retry:
        options["never_retry"] = [error.__name__ for error in handler.never_retry]
    return options


def _written(handler: Handler) -> dict[str, Any]:
    return {name: value for name in _OPTIONS if (value := getattr(handler, name)) is not None}


def _check_options(handler: Handler) -> None:
    options = _written(handler)
    backoff = HandlerSettings(**options).backoff
    if backoff and backoff.written >= {"base", "max"} and backoff.base > backoff.max:
        got = options["backoff"]["base"]
        raise ValueError(f"backoff.base: expected at most max of the same backoff, got {got!r}")
    priority = handler.priority
    if priority is not None and (type(priority) is not int or abs(priority) > MAX_INTEGER):
        raise ValueError(f"priority: expected a whole number of at most 64 bits, got {priority!r:.80}")
    if handler.schedule is not None:
        of_handler(handler.name, handler.schedule)
    never = handler.never_retry
    if not isinstance(never, tuple) or not all(isinstance(e, type) and issubclass(e, BaseException) for e in never):
        raise ValueError(f"never_retry: expected exception classes, got {never!r}")


def _is_async(function: object) -> bool:
    """Return whether calls return coroutines. Raises TypeError if it is no function that can be a handler."""
    if not callable(function):
        raise TypeError(f"expected a function, got {function!r}")
    below = function_below(function)
    where = "" if below is function else " below a decorator that returns its result as it is"
    if _is_any_of(below, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        raise TypeError(f"expected a function that returns its result, got a generator{where}")
    return _is_any_of(below, inspect.iscoroutinefunction)


def _is_any_of(function: object, *kinds: Callable[[object], bool]) -> bool:
    return any(kind(function) or kind(type(function).__call__) for kind in kinds)


# --- hooks


def implemented_hooks(plugin: object) -> list[str]:
    """Return the names of the hooks that the plugin implements, sorted. Raises PluginMistake if one can't be called."""
    names, mistakes = [], []
    for name, value in _functions(plugin):
        marked = _hook_mark(value)
        try:
            if marked is not None:
                _check_hook(name, value, marked)
                names.append(name)
            elif name in HOOKS and isinstance(plugin, ModuleType):
                expected = "decorate it with @hookimpl (from supervisor import hookimpl)"
                raise PluginMistake(f"{name}: {expected}", location(value)[1])
        except PluginMistake as mistake:
            mistakes.append(mistake)
    if wrong := _together(mistakes):
        raise wrong
    return sorted(names)


def is_async_wrapper(function: Any) -> bool:
    """Return whether a wrapper of jobs is an async generator function."""
    return inspect.isasyncgenfunction(inspect.unwrap(function, stop=_is_wrapper))


def wraps_async_only(wrapper: Any, sync: Sequence[str]) -> str:
    """Return the warning about an async wrapper, for the handlers `sync`."""
    more = f" and {len(sync) - 3} more" if len(sync) > 3 else ""
    return (
        f"{_WRAPPED} (line {location(wrapper)[1]}) is async: it wraps async handlers only, and is not run around "
        f"{', '.join(sync[:3])}{more}; write a plain wrapper beside it for these, with specname={_WRAPPED!r}"
    )


def _is_wrapper(function: Any) -> bool:
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


def wrappers_of(plugin: object) -> list[Any]:
    """Return the implementations of `supervisor_run` in a plugin whose hooks were checked."""
    marks = [(name, value, _hook_mark(value)) for name, value in _functions(plugin)]
    return [value for name, value, mark in marks if mark is not None and (mark.get("specname") or name) == _WRAPPED]


def suspicious_names(plugin: object) -> list[str]:
    """Return warnings about functions that look like misspelt hooks."""
    return [
        f"{name} (line {location(value)[1]}) is no hook{hint}"
        for name, value in _functions(plugin)
        if name not in HOOKS and _hook_mark(value) is None and (hint := did_you_mean(name, HOOKS, prefix=_PREFIX))
    ]


def _functions(plugin: object) -> list[tuple[str, Any]]:
    """Return (name, routine) for names that begin like a hook's, and for routines with @hookimpl under any name."""
    pairs = [(name, getattr(plugin, name, None)) for name in dir(plugin)]
    return [
        (name, value)
        for name, value in pairs
        if is_routine(value) and (name.startswith(_PREFIX) or _hook_mark(value) is not None)
    ]


def _hook_mark(function: Any) -> dict[str, Any] | None:
    """Return the options that @hookimpl has set on the function."""
    mark: dict[str, Any] | None = getattr(function, "__dict__", {}).get(_MARK_OF_HOOK)
    return mark


def _check_hook(name: str, function: Any, marked: dict[str, Any]) -> None:
    line = location(function)[1]
    known = marked.get("specname") or name
    if known not in HOOKS:
        raise PluginMistake(f"unknown hook {known!r}{did_you_mean(known, HOOKS, prefix=_PREFIX)}", line)
    is_async_gen = known == _WRAPPED and inspect.isasyncgenfunction(function)
    if not is_async_gen and _is_any_of(
        function_below(function), inspect.iscoroutinefunction, inspect.isasyncgenfunction
    ):
        if known == _WRAPPED:
            raise PluginMistake(f"{known}: an async wrapper yields once: result = yield", line)
        raise PluginMistake(f"{known}: async functions are not supported: expected a plain function", line)
    expected = [parameter for parameter in inspect.signature(HOOKS[known]).parameters if parameter != "self"]
    for argument in inspect.signature(function).parameters:
        if argument not in expected:
            takes = f"it takes {', '.join(expected)}" if expected else "it takes no argument"
            raise PluginMistake(f"{known}: unknown argument {argument!r}; {takes}", line)
    wrapper = bool(marked.get("wrapper"))
    if marked.get("hookwrapper") or wrapper != (known == _WRAPPED):
        wanted = "@hookimpl(wrapper=True)" if known == _WRAPPED else "a plain @hookimpl"
        raise PluginMistake(f"{known}: expected {wanted}", line)
    if wrapper and not is_async_gen and not inspect.isgeneratorfunction(function):
        raise PluginMistake(f"{known}: a wrapper yields once: return (yield)", line)
