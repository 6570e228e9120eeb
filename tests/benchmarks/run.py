"""One run of the command: the rounds, the peers that take part, and the tables that are filled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.benchmarks.peers.base import Peer
from tests.benchmarks.table import Measure, Table

Measurement = Callable[[], Mapping[str, float]]
"""Measures one contender once; returns values by the names of measures."""


class NotMeasured(Exception):
    """A contender can't be measured; the message gives the reason in one line."""


@dataclass
class Run:
    """`peers` has the names of the peers that take part, None for all. With `quick` only little work is done, and the figures mean
    nothing. `failed`: this project itself could not be measured."""

    rounds: int = 3
    peers: Collection[str] | None = None
    quick: bool = False
    tables: list[Table] = field(default_factory=list)
    failed: bool = False

    def wanted(self, peers: Iterable[Peer]) -> list[Peer]:
        return [peer for peer in peers if self.wants(peer.name)]

    def wants(self, name: str) -> bool:
        return self.peers is None or name in self.peers

    def table(self, row: str, title: str, measures: Sequence[Measure]) -> Table:
        """Add an empty table to this run."""
        table = Table(row, title, measures)
        self.tables.append(table)
        return table

    def compare(self, table: Table, contenders: Mapping[str, Measurement], rounds: int | None = None) -> None:
        """Measure the contenders in turn, A B C A B C, so that a slow moment of the machine slows all; then print the table.

        A contender that fails is measured no more, and the table has the reason.
        """
        left = dict(contenders)
        for number in range(1, (rounds or self.rounds) + 1):
            for name, measure in list(left.items()):
                self.show_progress(f"{table.row}: {name}, round {number}")
                try:
                    table.add(name, measure())
                except Exception as problem:  # a peer may raise anything
                    del left[name]
                    table.leave_out(name, _reason(problem))
                    self.failed = self.failed or name == table.ours
        self.show_progress("")
        print(table.text(), end="\n\n", flush=True)

    def show_progress(self, text: str) -> None:
        """Replace the last line of the terminal."""
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


class Row(Protocol):
    """A module of this package that measures one thing."""

    NAME: str
    TITLE: str

    def run(self, run: Run) -> None: ...


def _reason(problem: Exception) -> str:
    text = str(problem).strip()
    return text if isinstance(problem, NotMeasured) else f"{type(problem).__name__}: {text}"
