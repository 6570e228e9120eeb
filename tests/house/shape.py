"""Lengths of files and functions, methods of classes, circles of imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "supervisor"
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_METHODS = 25


class Measured(NamedTuple):
    size: int
    name: str

    def __str__(self) -> str:
        return f"{self.size:5}  {self.name}"


def sources() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    return {_module(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def total_lines() -> int:
    return sum(len(path.read_text().splitlines()) for path in sources().values())


def files() -> list[Measured]:
    """Lines of each file, longest first."""
    return _longest_first(Measured(len(path.read_text().splitlines()), _shown(path)) for path in sources().values())


def functions() -> list[Measured]:
    """Lines of each function without its decorators, longest first."""
    found = []
    for path in sources().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                found.append(Measured(lines, f"{_shown(path)}:{node.lineno} {node.name}"))
    return _longest_first(found)


def classes() -> list[Measured]:
    """Methods that each class defines itself, most first."""
    found = []
    for path in sources().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                found.append(Measured(len(methods), f"{_shown(path)}:{node.lineno} {node.name}"))
    return _longest_first(found)


def circles() -> list[list[str]]:
    """Modules that import each other in a circle, in types and inside functions too."""
    known = sources()
    graph = {module: set(_imported(module, path, known)) for module, path in known.items()}
    return [sorted(group) for group in _strongly_connected(graph) if len(group) > 1]


def _imported(module: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [_target(node.module, alias.name, known) for alias in node.names]
        else:
            continue
        yield from (name for name in names if name in known and name != module)


def _target(module: str, name: str, known: Mapping[str, Path]) -> str:
    return f"{module}.{name}" if f"{module}.{name}" in known else module


def _strongly_connected(graph: Mapping[str, set[str]]) -> Iterator[set[str]]:
    reach = {module: _reachable(module, graph) for module in graph}
    seen: set[str] = set()
    for module in graph:
        if module not in seen:
            group = {module, *(other for other in reach[module] if module in reach[other])}
            seen |= group
            yield group


def _reachable(module: str, graph: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for other in graph[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found


def _longest_first(measured: Iterator[Measured] | list[Measured]) -> list[Measured]:
    return sorted(measured, reverse=True)


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
