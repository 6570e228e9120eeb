"""Charts: the paths stay inside their box, gaps stay gaps, and the summary has the figures."""

from __future__ import annotations

import re

import pytest

from supervisor.http.pages.charts import HEIGHT, WIDTH, charts, nice_limit
from supervisor.telemetry.history import MINUTES, Numbers

NAMES = (
    "finished",
    "failed",
    "retried",
    "fresh",
    "retries",
    "latency_p50",
    "latency_p95",
    "wait_p50",
    "wait_p95",
    "run_p50",
    "run_p95",
)


def series(**known: Numbers) -> dict[str, Numbers]:
    return {name: known.get(name, [None] * MINUTES) for name in NAMES}


def test_without_figures_each_chart_is_empty() -> None:
    assert [chart.is_empty for chart in charts(series())] == [True] * 6
    assert charts({}) == []


def test_bars_and_lines_stay_in_the_box_and_gaps_are_gaps() -> None:
    half: Numbers = [None] * 30
    found = charts(
        series(
            finished=[*half, *map(float, range(1, 31))],
            failed=[*half, *[1.0] * 30],
            run_p95=[1.0, None, 3.0, *half, *half[:27]],
        )
    )
    throughput, failures, *_, run = found
    for chart in found:
        for curve in chart.curves:
            for x, y in re.findall(r"[ML]([\d.]+) ([\d.-]+)", curve.path):
                assert 0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT
    assert throughput.highest == "50" and "failed 1" in throughput.summary and "succeeded 29" in throughput.summary
    assert failures.curves[1].path and not failures.curves[0].path
    assert run.curves[1].path.count("M") == 2 and run.curves[1].last == "3s"


@pytest.mark.parametrize(
    ("value", "limit"), [(0, 1), (1, 1), (1.2, 2), (3, 5), (7, 10), (0.013, 0.02), (101, 200), (1e6, 1e6)]
)
def test_the_top_of_a_chart_is_a_round_number(value: float, limit: float) -> None:
    assert nice_limit(value) == pytest.approx(limit)
