"""What was measured: values by contender and measure, and the table that they make."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

OURS = "supervisor"


@dataclass(frozen=True)
class Measure:
    """One figure of a row. `better` says which way: more jobs a second, less milliseconds."""

    name: str
    unit: str
    better: Literal["more", "less"]

    def ratio(self, ours: float, other: float) -> float:
        """Above 1: ours is better, so many times."""
        above, below = (ours, other) if self.better == "more" else (other, ours)
        return above / below if below else float("inf")


@dataclass(frozen=True)
class Figure:
    """One line of a table; `ratio` is the median of the ratios of each round, None for ours."""

    contender: str
    measure: Measure
    values: tuple[float, ...]
    ratio: float | None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.values), max(self.values)


@dataclass
class Table:
    """A row of the benchmarks: `title` says what was done, `measures` what was looked at.

    Contenders stand in the order in which they were first heard of. The one that all others are held against is `ours`.
    """

    row: str
    title: str
    measures: Sequence[Measure]
    ours: str = OURS
    notes: list[str] = field(default_factory=list)
    _values: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    _absent: dict[str, str] = field(default_factory=dict)

    def add(self, contender: str, values: Mapping[str, float]) -> None:
        """What one round gave, by the name of the measure; a measure may be missing."""
        known = {measure.name for measure in self.measures}
        if not known >= values.keys():
            raise ValueError(f"not measured in {self.row}: {', '.join(sorted(values.keys() - known))}")
        self._values.setdefault(contender, []).append(values)

    def absent(self, contender: str, reason: str) -> None:
        """It could not be measured, or not any more."""
        self._absent[contender] = " ".join(reason.split())

    def note(self, text: str) -> None:
        """A line below the table."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def absences(self) -> Mapping[str, str]:
        return self._absent

    def figures(self) -> list[Figure]:
        return [
            Figure(contender, measure, values, None if contender == self.ours else self._ratio(contender, measure))
            for measure in self.measures
            for contender in self._values
            if (values := self.values(contender, measure))
        ]

    def values(self, contender: str, measure: Measure) -> tuple[float, ...]:
        return tuple(values[measure.name] for values in self._values.get(contender, ()) if measure.name in values)

    def _ratio(self, contender: str, measure: Measure) -> float | None:
        """Of the rounds that both have: what slows the machine for a while slows both sides of a round."""
        rounds = zip(self._values.get(self.ours, ()), self._values[contender], strict=False)
        name = measure.name
        ratios = [measure.ratio(mine[name], its[name]) for mine, its in rounds if name in mine and name in its]
        return statistics.median(ratios) if ratios else None

    def text(self) -> str:
        lines = _aligned([_HEADINGS, *map(_cells, self.figures())])
        absent = [f"{contender}: {reason}" for contender, reason in self._absent.items()]
        return "\n".join([f"{self.row}: {self.title}", *(f"  {line}" for line in [*lines, *absent, *self.notes])])

    def markdown(self) -> str:
        rows = [_HEADINGS, ("---", "---", "--:", "--:", "--:"), *map(_cells, self.figures())]
        rows += [(contender, reason, "", "", "") for contender, reason in self._absent.items()]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        return "\n".join([f"**{self.title}**", "", *lines, "", *(f"{note}\n" for note in self.notes)])

    def json(self) -> dict[str, Any]:
        return {
            "row": self.row,
            "title": self.title,
            "figures": [
                {
                    "contender": figure.contender,
                    "measure": figure.measure.name,
                    "unit": figure.measure.unit,
                    "better": figure.measure.better,
                    "values": list(figure.values),
                    "median": figure.median,
                    "ratio": figure.ratio,
                }
                for figure in self.figures()
            ],
            "absent": dict(self._absent),
            "notes": list(self.notes),
        }


_HEADINGS = ("contender", "measure", "median", "min - max", "ours better by")


def _cells(figure: Figure) -> tuple[str, ...]:
    least, most = figure.spread
    return (
        figure.contender,
        figure.measure.name,
        f"{_number(figure.median)} {figure.measure.unit}",
        f"{_number(least)} - {_number(most)}",
        "" if figure.ratio is None else f"{_number(figure.ratio)} x",
    )


def _number(value: float) -> str:
    """Three digits that count; thousands in full."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 if abs(value) < 10 else 1}f}" if abs(value) >= 0.1 else f"{value:.3f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
