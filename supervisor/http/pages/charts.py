"""Charts as paths of SVG. Sizes and colours come from classes: the policy of the pages allows no style of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, log10
from typing import NamedTuple

from supervisor.telemetry.history import MINUTES, Numbers
from supervisor.text.units import format_duration

STEP, HEIGHT = 5, 60
WIDTH = MINUTES * STEP
BAR = 4
UNKNOWN = "–"


class Curve(NamedTuple):
    name: str
    path: str
    kind: str
    """Its class, by which it has a colour."""
    values: Sequence[str]
    """The value of each minute as text, oldest first."""

    @property
    def last(self) -> str:
        return next((value for value in reversed(self.values) if value != UNKNOWN), UNKNOWN)


class Chart(NamedTuple):
    title: str
    unit: str
    form: str
    """The class of its curves: `bars` or `line`."""
    curves: Sequence[Curve]
    highest: str
    """The value at the top of the chart."""
    summary: str
    """The text for people who do not see the chart."""
    is_empty: bool


def charts(series: Mapping[str, Numbers]) -> list[Chart]:
    if not series:
        return []
    done = [
        None if a is None or b is None else a - b for a, b in zip(series["finished"], series["failed"], strict=True)
    ]
    return [
        _bars("Throughput", "jobs a minute", {"succeeded": ("ok", done), "failed": ("bad", series["failed"])}),
        _bars(
            "Failed attempts", "attempts a minute",
            {"retried": ("warn", series["retried"]), "failed for good": ("bad", series["failed"])},
        ),
        _bars("Ready", "jobs", {"fresh": ("first", series["fresh"]), "retries": ("warn", series["retries"])}),
        _lines("Latency", "due to end", series, "latency"),
        _lines("Wait", "due to claim", series, "wait"),
        _lines("Run time", "of an attempt", series, "run"),
    ]  # fmt: skip


def _bars(title: str, unit: str, named: Mapping[str, tuple[str, Numbers]]) -> Chart:
    """Return a chart of bars, one upon the other."""
    columns = list(zip(*(values for _, values in named.values()), strict=True))
    top = nice_limit(max((sum(each or 0.0 for each in column) for column in columns), default=0.0))
    curves = []
    for at, (name, (kind, values)) in enumerate(named.items()):
        path = ""
        for x, column in enumerate(columns):
            if column[at]:
                low = HEIGHT * (1 - sum(each or 0.0 for each in column[:at]) / top)
                path += f"M{x * STEP} {low:.1f}v{-HEIGHT * (column[at] or 0.0) / top:.1f}h{BAR}V{low:.1f}z"
        curves.append(Curve(name, path, kind, _texts(values, rate)))
    return _chart(title, unit, "bars", curves, rate(top), not any(any(values) for _, values in named.values()))


def _lines(title: str, unit: str, series: Mapping[str, Numbers], of: str) -> Chart:
    named = {"p50": ("first", series[f"{of}_p50"]), "p95": ("second", series[f"{of}_p95"])}
    known = [value for _, values in named.values() for value in values if value is not None]
    top = nice_limit(max(known, default=0.0))
    curves = [
        Curve(name, _line(values, top), kind, _texts(values, format_duration)) for name, (kind, values) in named.items()
    ]
    return _chart(title, unit, "line", curves, format_duration(top), not known)


def _line(values: Numbers, top: float) -> str:
    """Return a line that is broken where nothing is known; a single value is a short line."""
    path, pen_is_down = "", False
    for x, value in enumerate(values):
        if value is None:
            pen_is_down = False
            continue
        y = HEIGHT * (1 - value / top)
        path += f"L{x * STEP + 2} {y:.1f}" if pen_is_down else f"M{x * STEP} {y:.1f}h2"
        pen_is_down = True
    return path


def _chart(title: str, unit: str, form: str, curves: Sequence[Curve], highest: str, is_empty: bool) -> Chart:
    latest = ", ".join(f"{each.name} {each.last}" for each in curves)
    summary = f"{title} ({unit}) of the last hour: {latest} now, the top of the chart is {highest}"
    return Chart(title, unit, form, curves, highest, summary, is_empty)


def _texts(values: Numbers, form: Callable[[float], str]) -> list[str]:
    return [UNKNOWN if value is None else form(value) for value in values]


def rate(value: float) -> str:
    if value >= 10 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.1f}"


def nice_limit(value: float) -> float:
    """Return the least of 1, 2, 5, 10, 20, 50 … or of their fractions that is not below `value`."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** ceil(log10(value) - 1)
    return next((unit * step for step in (1, 2, 5) if value <= unit * step), unit * 10)
