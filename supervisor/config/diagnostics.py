"""The problems of a config file: the line and the key of each, what was expected, and what the file has.

Values are shown as the file has them, without variables replaced: the values of variables may be secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.config.document import Document, Keys, Problem
from supervisor.text.names import did_you_mean, did_you_mean_or_all

MAX_SHOWN = 60

Tree = dict[str, Any]
"""Keys, level by level; None at a leaf. `<name>` stands for any name, `[]` for an entry of a list."""


def write_keys(keys: Keys) -> str:
    """Return the keys as text, such as `dlq.sinks[0].type`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")


def write_problem(file: Path, problem: Problem) -> str:
    where = f"{file}:{problem.line}" if problem.line else str(file)
    return ": ".join(part for part in (where, write_keys(problem.path), problem.message) if part)


def flatten(known: Tree, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys, depth first, such as `queues.<name>.retry.max_retries` and `dlq.sinks[].type`."""
    for key, branch in known.items():
        dotted = f"{prefix}{key}" if key == "[]" or not prefix else f"{prefix}.{key}"
        if isinstance(branch, dict):
            yield from flatten(branch, dotted)
        else:
            yield dotted


class Contradiction(NamedTuple):
    """`path` is the key to change. It is not reported if that key or one of `involved` has another problem already.
    `secret` is whether the message must not show the value."""

    path: Keys
    message: str
    involved: tuple[Keys, ...] = ()
    secret: bool = False


class Findings:
    """The problems of a document: those found by the YAML reader, and those of the values that it could read."""

    def __init__(self, document: Document, known: Tree) -> None:
        self.problems = list(document.problems)
        self._document = document
        self._known = known
        self._unread = [problem.path for problem in document.problems]

    def wrong(self, path: Keys, expected: str, *, secret: bool = False) -> None:
        """Add that the value at `path` is not as `expected`. The message shows the value unless it is `secret`."""
        self._add(path, expected if secret else expected + self._got(path))

    def unknown(self, path: Keys) -> None:
        self._add(path, f"unknown key{self._hint(path)}")

    def missing(self, path: Keys, expected: str) -> None:
        self._add(path, f"missing; expected {expected}")

    def _add(self, path: Keys, message: str) -> None:
        if not touches(path, self._unread):
            self.problems.append(Problem(path, self._line(path), message))

    def _line(self, path: Keys) -> int | None:
        """Return the line of the value, or of the nearest level above it that is in the file."""
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
        """Suggest the most similar key of this level, else a key of this name at another level, else all keys of this level."""
        name, beside = str(path[-1]), _below(self._known, path[:-1])
        elsewhere = [keys for keys in flatten(self._known) if keys.rpartition(".")[2] == name]
        if elsewhere and not did_you_mean(name, beside):
            return f", did you mean {elsewhere[0]!r}?"
        return did_you_mean_or_all(name, beside)


def touches(path: Keys, others: Iterable[Keys]) -> bool:
    """Return whether one of `others` is `path`, or is above or below it. An empty path in `others` is ignored."""
    return any(other and all(map(eq, path, other)) for other in others)


def is_spoiled(key: Keys, wrong: Iterable[Keys]) -> bool:
    """Return whether the value of `key` is unknown: it, or a level above it, is wrong or was perhaps misspelt."""

    def may_be(written: str | int, meant: str | int) -> bool:
        return written == meant or bool(did_you_mean(str(written), [str(meant)]))

    return any(path and all(map(may_be, path, key)) for path in wrong)


def _below(known: Tree, path: Keys) -> Tree:
    for key in path:
        known = known.get("[]" if isinstance(key, int) else str(key)) or known["<name>"]
    return known
