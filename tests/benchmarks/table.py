"""Measured values by contender and measure, and the table that shows them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

OURS = "supervisor"


@dataclass(frozen=True)
class Measure:
    """One figure of a row. `better` is "more" for jobs per second, "less" for milliseconds."""

    name: str
    unit: str
    better: Literal["more", "less"]

    def ratio(self, ours: float, other: float) -> float:
        """Return how many times ours is better; below 1 if it is worse."""
        above, below = (ours, other) if self.better == "more" else (other, ours)
        return above / below if below else float("inf")


@dataclass(frozen=True)
class Figure:
    """One line of a table. `ratio` is the median of the ratios of the rounds, None for ours."""

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
    """The figures of one row, with contenders in the order of their first values. All are compared with `ours`."""

    row: str
    title: str
    measures: Sequence[Measure]
    ours: str = OURS
    notes: list[str] = field(default_factory=list)
    _values: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    _left_out: dict[str, str] = field(default_factory=dict)

    def add(self, contender: str, values: Mapping[str, float]) -> None:
        """Add the values of one round by the name of the measure. A measure may be missing."""
        known = {measure.name for measure in self.measures}
        if not known >= values.keys():
            raise ValueError(f"not measured in {self.row}: {', '.join(sorted(values.keys() - known))}")
        self._values.setdefault(contender, []).append(values)

    def leave_out(self, contender: str, reason: str) -> None:
        """Record why a contender is not measured, or not any more."""
        self._left_out[contender] = " ".join(reason.split())

    def note(self, text: str) -> None:
        """Add a line below the table."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def left_out(self) -> Mapping[str, str]:
        return self._left_out

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
        """Return the median of the ratios of the rounds that both have: a slow moment of the machine slows both sides of a round."""
        rounds = zip(self._values.get(self.ours, ()), self._values[contender], strict=False)
        name = measure.name
        ratios = [measure.ratio(mine[name], its[name]) for mine, its in rounds if name in mine and name in its]
        return statistics.median(ratios) if ratios else None

    def text(self) -> str:
        lines = _aligned([_HEADINGS, *map(_cells, self.figures())])
        left_out = [f"{contender}: {reason}" for contender, reason in self._left_out.items()]
        return "\n".join([f"{self.row}: {self.title}", *(f"  {line}" for line in [*lines, *left_out, *self.notes])])

    def markdown(self) -> str:
        rows = [_HEADINGS, ("---", "---", "--:", "--:", "--:"), *map(_cells, self.figures())]
        rows += [(contender, reason, "", "", "") for contender, reason in self._left_out.items()]
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
            "left_out": dict(self._left_out),
            "notes": list(self.notes),
        }


_HEADINGS = ("contender", "measure", "median", "min - max", "ours better by")


def _cells(figure: Figure) -> tuple[str, ...]:
    lowest, highest = figure.spread
    return (
        figure.contender,
        figure.measure.name,
        f"{_number(figure.median)} {figure.measure.unit}",
        f"{_number(lowest)} - {_number(highest)}",
        "" if figure.ratio is None else f"{_number(figure.ratio)} x",
    )


def _number(value: float) -> str:
    """Return three significant digits; thousands in full."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 if abs(value) < 10 else 1}f}" if abs(value) >= 0.1 else f"{value:.3f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
