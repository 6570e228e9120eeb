"""Signatures as the pages have them, and as the code has them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from supervisor.client.by_filter import Filter
from supervisor.client.new_jobs import Options, checked
from supervisor.jobs import NewJob


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters; those of `**options` one by one, before `connection`."""
    found = list(inspect.signature(function).parameters.values())
    if found and found[-1].annotation == "Unpack[Options]":
        of_job = {**inspect.signature(NewJob).parameters, **inspect.signature(checked).parameters}
        options = [of_job[name].replace(kind=Parameter.KEYWORD_ONLY) for name in Options.__annotations__]
        found[-2:] = [*options, found[-2]]
    if found and found[-1].annotation == "Unpack[Filter]":
        where = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in Filter.__annotations__]
        first = next(at for at, each in enumerate(found) if each.kind is Parameter.KEYWORD_ONLY)
        found = [*found[:first], *where, *found[first:-1]]
    return found


def documented(text: str) -> tuple[str, list[tuple[str, Any, Any]]]:
    """Return the name, and of each parameter its name, kind and default (Ellipsis where the page leaves it out)."""
    (function,) = ast.parse(f"def {text.strip()}: pass").body
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    found = [
        (argument.arg, _kind(argument, arguments), _value(default))
        for argument, default in zip(positional, [*missing, *arguments.defaults], strict=True)
    ]
    found += [
        (argument.arg, Parameter.KEYWORD_ONLY, _value(default))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return function.name, found


def _kind(argument: ast.arg, arguments: ast.arguments) -> Any:
    return Parameter.POSITIONAL_ONLY if argument in arguments.posonlyargs else Parameter.POSITIONAL_OR_KEYWORD


def _value(default: ast.expr | None) -> Any:
    return Parameter.empty if default is None else ast.literal_eval(default)
