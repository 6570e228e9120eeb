"""The problems of a config file: where each stands, which key it is, what was expected, what is there.

Values are shown as the file has them, never as variables made them: those may be secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import eq
from pathlib import Path
from typing import Any

from supervisor.config.yaml_reader import Document, Keys, Problem
from supervisor.text.suggestions import did_you_mean, did_you_mean_or_all

MAX_SHOWN = 60

Tree = dict[str, Any]
"""Keys, level by level; None at a leaf. `<name>` stands for any name, `[]` for an entry of a list."""


def write_keys(keys: Keys) -> str:
    """dlq.sinks[0].type"""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")


def write_problem(file: Path, problem: Problem) -> str:
    where = f"{file}:{problem.line}" if problem.line else str(file)
    return ": ".join(part for part in (where, write_keys(problem.path), problem.message) if part)


def flatten(known: Tree, prefix: str = "") -> Iterator[str]:
    """Dotted keys, depth first: `queues.<name>.retry.max_retries`, `dlq.sinks[].type`."""
    for key, branch in known.items():
        dotted = f"{prefix}{key}" if key == "[]" or not prefix else f"{prefix}.{key}"
        if isinstance(branch, dict):
            yield from flatten(branch, dotted)
        else:
            yield dotted


class Findings:
    """The problems of a document: those of reading it, and of its values where reading them has found none."""

    def __init__(self, document: Document, known: Tree) -> None:
        self.problems = list(document.problems)
        self._document = document
        self._known = known
        self._unread = [problem.path for problem in document.problems]

    def wrong(self, path: Keys, expected: str, *, secret: bool = False) -> None:
        """Add a value that is wrong. What is there is shown unless it is `secret`."""
        self._add(path, expected if secret else expected + self._got(path))

    def unknown(self, path: Keys) -> None:
        self._add(path, f"unknown key{self._hint(path)}")

    def missing(self, path: Keys, expected: str) -> None:
        self._add(path, f"missing; expected {expected}")

    def _add(self, path: Keys, message: str) -> None:
        if not touches(path, self._unread):
            self.problems.append(Problem(path, self._line(path), message))

    def _line(self, path: Keys) -> int | None:
        """The line of the value, or of the nearest value above it that stands in the file."""
        positions = self._document.positions
        starts = (path[:end] for end in range(len(path), -1, -1))
        return next((positions[start].line for start in starts if start in positions), None)

    def _got(self, path: Keys) -> str:
        position = self._document.positions.get(path)
        if position is None or position.text is None:
            return ""
        text = position.text or "nothing"
        return f", got {text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + '...'}"

    def _hint(self, path: Keys) -> str:
        """The nearest key of the same level, else a key of this name at another level, else all keys of the level."""
        name, beside = str(path[-1]), _below(self._known, path[:-1])
        elsewhere = [keys for keys in flatten(self._known) if keys.rpartition(".")[2] == name]
        if elsewhere and not did_you_mean(name, beside):
            return f", did you mean {elsewhere[0]!r}?"
        return did_you_mean_or_all(name, beside)


def touches(path: Keys, others: Iterable[Keys]) -> bool:
    """Return whether one of `others` is `path`, or is above or below it. The whole document counts for itself only."""
    return any(other and all(map(eq, path, other)) for other in others)


def _below(known: Tree, path: Keys) -> Tree:
    for key in path:
        known = known.get("[]" if isinstance(key, int) else str(key)) or known["<name>"]
    return known
