"""A config file as read: its values, each with its line, and its problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

Keys = tuple[str | int, ...]
"""The keys and indexes that lead to a value, such as `("dlq", "sinks", 0)`."""


class Refused:
    """A placeholder in the document for a value that was refused, so that the rest can still be checked."""


class Position(NamedTuple):
    """The line of a value. `text` is a scalar as written, before variables are replaced; None for mappings and lists."""

    line: int
    text: str | None


class Problem(NamedTuple):
    path: Keys
    line: int | None
    message: str


@dataclass(slots=True)
class Document:
    """A file as read. `variables` has the texts that the environment gave for the scalar at each path."""

    value: Any = None
    positions: dict[Keys, Position] = field(default_factory=dict)
    variables: dict[Keys, list[str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
