"""What a plugin may bring: finds the handlers and hooks of a module and says what is wrong with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from types import BuiltinFunctionType, CodeType, MethodType, MethodWrapperType, ModuleType
from typing import Any

from supervisor.errors import PluginMistake
from supervisor.handlers import MARK, Handler
from supervisor.hooks import PROJECT, Specs
from supervisor.jobs import Job
from supervisor.text.suggestions import did_you_mean
from supervisor.text.units import parse_duration, parse_limit

_PREFIX = f"{PROJECT}_"
HOOKS = {name: spec for name, spec in vars(Specs).items() if name.startswith(_PREFIX)}
MAX_RETRIES = 1000

_WRAPPED = "supervisor_run"
_MARK_OF_HOOK = f"{PROJECT}_impl"


def location(function: Any) -> tuple[str | None, int | None]:
    """File and line of a function, through its decorators; None where it has no Python code."""
    try:
        code = getattr(inspect.unwrap(function), "__code__", None)
    except ValueError:
        code = None
    return (code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else (None, None)


# --- handlers


def marked_handlers(module: object) -> list[Handler]:
    """Handlers of the functions found in the module, defined or imported there, each once."""
    found: dict[int, Handler] = {}
    for value in list(vars(module).values()):
        if not is_routine(value):
            continue
        for described in getattr(value, "__dict__", {}).get(MARK, ()):
            found.setdefault(id(described), _outermost(described, value))
    return list(found.values())


def is_routine(value: object) -> bool:
    """As inspect.isroutine, but without asking the value for its class: a framework's lazy object may connect, or fail."""
    kind = type(value)
    descriptor = hasattr(kind, "__get__") and not hasattr(kind, "__set__") and not issubclass(kind, type)
    return descriptor or issubclass(kind, BuiltinFunctionType | MethodType | MethodWrapperType)


def _outermost(described: Handler, function: Callable[[Job], Any]) -> Handler:
    """A decorator above @handler (functools.wraps copies the mark) is part of what the author wants run."""
    if described.function is function or getattr(function, "__wrapped__", None) is None:
        return described
    options = {name: getattr(described, name) for name in Handler.__slots__}
    return Handler(**{**options, "function": function})


def check_handler(described: object) -> Handler:
    """The handler itself; raises PluginMistake naming the handler, the option and what was expected."""
    if not isinstance(described, Handler):
        raise PluginMistake(f"supervisor_handlers(): expected Handler objects, got {described!r}")
    line = location(described.function)[1]
    try:
        _check_name(described.name)
        _check_function(described.function)
        for option, check in _OPTIONS.items():
            value = getattr(described, option)
            if value is not None:
                _named(option, check, value)
    except (ValueError, TypeError) as error:
        raise PluginMistake(f"handler {described.name!r}: {error}", line) from None
    return described


def written_options(described: Handler) -> dict[str, Any]:
    """The options that were written, as plain JSON values."""
    options = {name: getattr(described, name) for name in _OPTIONS if getattr(described, name) is not None}
    if described.never_retry:
        options["never_retry"] = [error.__name__ for error in described.never_retry]
    else:
        options.pop("never_retry", None)
    return options


def _named(option: str, check: Callable[[Any], object], value: Any) -> None:
    try:
        check(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{option}: {error}") from None


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable() or len(name) > 200:
        raise ValueError("its name: expected printable text of 1 to 200 characters, without spaces around it")


def _check_function(function: object) -> None:
    if not callable(function):
        raise TypeError(f"expected a function, got {function!r}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("async functions are not supported: expected a plain function")
    if inspect.isgeneratorfunction(function):
        raise TypeError("it is a generator: expected a function that returns its result")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(f"expected a function of one argument, the job, got {signature}") from None


def _check_max_retries(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_RETRIES:
        raise ValueError(f"expected a whole number from 0 to {MAX_RETRIES}, got {value!r}")


def _check_backoff(value: object) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping with {', '.join(_BACKOFF)}, got {value!r}")
    for key, part in value.items():
        if key not in _BACKOFF:
            raise ValueError(f"unknown key {key!r}{did_you_mean(str(key), _BACKOFF)}")
        _named(key, _BACKOFF[key], part)
    if {"base", "max"} <= value.keys() and parse_duration(value["base"]) > parse_duration(value["max"]):
        raise ValueError(f"base {value['base']} is above max {value['max']}")


def _check_factor(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 1000:
        raise ValueError(f"expected a number from 1 to 1000, got {value!r}")


def _check_jitter(value: Any) -> None:
    if not isinstance(value, str) or value not in ("full", "none"):
        parse_duration(value)


def _check_never_retry(value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(e, type) and issubclass(e, BaseException) for e in value):
        raise ValueError(f"expected exception classes, got {value!r}")


_BACKOFF: dict[str, Callable[[Any], object]] = {
    "base": parse_duration,
    "factor": _check_factor,
    "max": parse_duration,
    "jitter": _check_jitter,
}
_OPTIONS: dict[str, Callable[[Any], object]] = {
    "timeout": parse_limit,
    "max_retries": _check_max_retries,
    "backoff": _check_backoff,
    "heartbeat": parse_duration,
    "heartbeat_timeout": parse_limit,
    "never_retry": _check_never_retry,
}


# --- hooks


def implemented_hooks(plugin: object) -> list[str]:
    """Names of the hooks that the plugin implements, sorted; raises PluginMistake for one that can't be called."""
    names = []
    for name, value in _functions(plugin):
        marked = getattr(value, "__dict__", {}).get(_MARK_OF_HOOK)
        if marked is not None:
            _check_hook(name, value, marked)
            names.append(name)
        elif name in HOOKS and isinstance(plugin, ModuleType):
            raise PluginMistake(
                f"{name}: decorate it with @hookimpl (from supervisor import hookimpl)", location(value)[1]
            )
    return sorted(names)


def suspicious_names(plugin: object) -> list[str]:
    """Warnings about functions that look like misspelt hooks."""
    return [
        f"{name} (line {location(value)[1]}) is no hook{near}"
        for name, value in _functions(plugin)
        if name not in HOOKS and _MARK_OF_HOOK not in getattr(value, "__dict__", {})
        for near in [_nearest_hook(name)]
        if near
    ]


def _nearest_hook(name: str) -> str:
    """By the part after the prefix, for that is what gets misspelt."""
    near = get_close_matches(
        name.removeprefix(_PREFIX), [hook.removeprefix(_PREFIX) for hook in HOOKS], n=1, cutoff=0.6
    )
    return f", did you mean {_PREFIX + near[0]!r}?" if near else ""


def _functions(plugin: object) -> list[tuple[str, Any]]:
    """Routines under a hook-like name, and whatever carries the mark of a hook under any name."""
    pairs = [(name, getattr(plugin, name, None)) for name in dir(plugin)]
    return [
        (name, value)
        for name, value in pairs
        if is_routine(value) and (name.startswith(_PREFIX) or _MARK_OF_HOOK in getattr(value, "__dict__", {}))
    ]


def _check_hook(name: str, function: Any, marked: dict[str, Any]) -> None:
    line = location(function)[1]
    known = marked.get("specname") or name
    if known not in HOOKS:
        raise PluginMistake(f"unknown hook {known!r}{_nearest_hook(known)}", line)
    expected = [parameter for parameter in inspect.signature(HOOKS[known]).parameters if parameter != "self"]
    for argument in inspect.signature(function).parameters:
        if argument not in expected:
            takes = f"it takes {', '.join(expected)}" if expected else "it takes no argument"
            raise PluginMistake(f"{known}: unknown argument {argument!r}; {takes}", line)
    wrapper = bool(marked.get("wrapper"))
    if marked.get("hookwrapper") or wrapper != (known == _WRAPPED):
        wanted = "@hookimpl(wrapper=True)" if known == _WRAPPED else "a plain @hookimpl"
        raise PluginMistake(f"{known}: expected {wanted}", line)
    if wrapper and not inspect.isgeneratorfunction(function):
        raise PluginMistake(f"{known}: a wrapper yields once: return (yield)", line)
