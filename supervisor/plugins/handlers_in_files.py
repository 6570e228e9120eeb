"""Find handlers in plugin files by reading them, without an import, which may take long."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from supervisor.jobs import Job

MAX_BYTES = 1_000_000
Function = ast.FunctionDef | ast.AsyncFunctionDef


def handlers_in(file: Path) -> Iterator[tuple[str, Function]]:
    """Yield each function below a decorator `handler`, with the name that it serves. A file with a mistake has none."""
    try:
        if file.stat().st_size > MAX_BYTES:
            return
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if (name := _name_given(decorator, node.name)) is not None:
                    yield name, node


def _name_given(decorator: ast.expr, default: str) -> str | None:
    call = decorator if isinstance(decorator, ast.Call) else None
    used = call.func if call else decorator
    if (used.attr if isinstance(used, ast.Attribute) else getattr(used, "id", None)) != "handler":
        return None
    first = call.args[0] if call and call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else default


def takes_any_payload(function: Function) -> bool:
    """Return whether the function seems to take the job alone, whatever its payload."""
    of = function.args
    if len(parameters := [*of.posonlyargs, *of.args, *of.kwonlyargs]) != 1 or of.kwarg is not None:
        return of.vararg is not None and not parameters
    (only,) = parameters
    if only.annotation is None:
        return only.arg in ("job", "_") or only in of.posonlyargs
    return ast.unparse(only.annotation).strip("'\"").rpartition(".")[2] == Job.__name__
