"""One run of the command: how often, against whom, and the tables that came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.benchmarks.peers.base import Peer
from tests.benchmarks.table import Measure, Table

Contender = Callable[[], Mapping[str, float]]


class Absent(Exception):
    """A contender cannot take part; the message says why, in one line."""


@dataclass
class Run:
    """`peers`: the names of those that may take part, None for all. `quick`: the figures don't count, only that they come.

    `rates`: what each contender has drained in this run, in jobs a second, by its name; rows that load them look here.
    `failed`: this project itself could not be measured.
    """

    rounds: int = 3
    peers: Collection[str] | None = None
    quick: bool = False
    tables: list[Table] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    failed: bool = False

    def wanted(self, peers: Iterable[Peer]) -> list[Peer]:
        return [peer for peer in peers if self.wants(peer.name)]

    def wants(self, name: str) -> bool:
        return self.peers is None or name in self.peers

    def table(self, row: str, title: str, measures: Sequence[Measure]) -> Table:
        """A new table of this run. It is printed when all is measured."""
        table = Table(row, title, measures)
        self.tables.append(table)
        return table

    def compare(self, table: Table, contenders: Mapping[str, Contender], rounds: int | None = None) -> None:
        """Measure all in turn, A B C A B C, so that what slows the machine for a while slows all.

        One that fails is out, with the reason in the table, and the others go on.
        """
        left = dict(contenders)
        for number in range(1, (rounds or self.rounds) + 1):
            for name, measure in list(left.items()):
                self.say(f"{table.row}: {name}, round {number}")
                try:
                    table.add(name, measure())
                except Exception as problem:  # whatever a peer has, the others are still measured
                    del left[name]
                    table.absent(name, _reason(problem))
                    self.failed = self.failed or name == table.ours
        self.say("")
        print(table.text(), end="\n\n", flush=True)

    def say(self, text: str) -> None:
        """Progress, on one line of a terminal."""
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


class Row(Protocol):
    """A module of this package that measures one thing."""

    NAME: str
    TITLE: str

    def run(self, run: Run) -> None: ...


def _reason(problem: Exception) -> str:
    text = str(problem).strip()
    return text if isinstance(problem, Absent) else f"{type(problem).__name__}: {text}"
