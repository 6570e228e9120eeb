"""Finds the function that a handler calls in the end, below decorators that pass its result on as it is."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import FunctionType
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def function_below(function: Any) -> Any:
    """Return the function whose result a call returns: that below decorators made with functools.wraps. A decorator that may do
    something with the result, such as to run a coroutine, hides what is below."""
    seen: list[Any] = []
    while isinstance(function, FunctionType) and function not in seen:
        seen.append(function)
        below = getattr(function, "__wrapped__", None)
        if below is not None and _returns_result_of(function, below):
            function = below
    return function


def _returns_result_of(decorated: FunctionType, below: Any) -> bool:
    """Whether `decorated` calls the function below, and does nothing with what that returns but to return it too."""
    body = _body(decorated)
    names = _names_of(below, decorated)
    nodes = [node for statement in body for node in ast.walk(statement)]
    if any(isinstance(node, _FUNCTIONS) for node in nodes):
        return False
    calls = [node for node in nodes if isinstance(node, ast.Call) and _is_name(node.func, names)]
    called = [call.func for call in calls]
    returned = [node.value for node in nodes if isinstance(node, ast.Return)]
    results = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and node.value in calls
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assigned = [node.value for node in nodes if isinstance(node, ast.Assign) and _is_name(node.targets[0], results)]
    loaded = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return (
        any(value in calls or _is_name(value, results) for value in returned)
        and all(call in returned or call in assigned for call in calls)
        and all(node in called for node in loaded if node.id in names)
        and all(node in returned for node in loaded if node.id in results)
    )


def _body(function: FunctionType) -> list[ast.stmt]:
    """Return the statements of the function; none if they can't be read."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function.__code__))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return []
    return definition.body if isinstance(definition, ast.FunctionDef) else []


def _names_of(wanted: Any, function: FunctionType) -> set[str]:
    """Return the names under which the function knows this object from around it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name for name, cell in cells if _contents(cell) is wanted}


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _is_name(node: ast.AST | None, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names
