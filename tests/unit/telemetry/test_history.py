"""The last hour of the metrics, by minute."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.telemetry.history import MINUTES, PERIOD, History, percentile
from supervisor.telemetry.metrics import RUN_BUCKETS, WAIT_BUCKETS, Histogram, Metrics


class Figures:
    """Metrics whose figures a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.values: dict[str, Any] = Metrics().snapshot()
        self.runs, self.waits = Histogram(RUN_BUCKETS), Histogram(WAIT_BUCKETS)
        self.history = History(self.snapshot, lambda: self.now)

    def snapshot(self) -> dict[str, Any]:
        return {
            **self.values,
            "supervisor_run_time_seconds": {"mail": self.runs.snapshot()} if self.runs.count else {},
            "supervisor_wait_time_seconds": self.waits.snapshot(),
        }

    def go_on(self, seconds: float, succeeded: int = 0, failed: int = 0) -> None:
        jobs = self.values["supervisor_jobs_total"]
        self.values["supervisor_jobs_total"] = {
            **jobs, "succeeded": jobs["succeeded"] + succeeded, "failed": jobs["failed"] + failed,
        }  # fmt: skip
        self.now += seconds
        self.history.sample()


def test_figures_are_by_minute_the_newest_last() -> None:
    figures = Figures()
    figures.history.sample()
    figures.go_on(PERIOD, succeeded=5)
    figures.values["supervisor_queue_depth"] = {"a": {"fresh": 2, "retry": 1}, "b": {"fresh": 3, "retry": 0}}
    figures.go_on(60.0, succeeded=10, failed=2)
    series = figures.history.series()
    assert {len(values) for values in series.values()} == {MINUTES}
    assert series["finished"][-2:] == [30.0, 12.0] and series["failed"][-2:] == [0.0, 2.0]
    assert series["fresh"][-2:] == [0.0, 5.0] and series["retries"][-2:] == [0.0, 1.0]
    assert series["finished"][:-2] == [None] * (MINUTES - 2)


def test_an_hour_is_kept_and_no_more() -> None:
    figures = Figures()
    for _ in range(3 * 360):
        figures.go_on(PERIOD, succeeded=1)
    series = figures.history.series()
    assert len(figures.history._samples) == 361
    assert series["finished"] == pytest.approx([6.0] * MINUTES)


def test_percentiles_are_of_the_minute_alone() -> None:
    figures = Figures()
    figures.history.sample()
    figures.runs.observe_all([0.2] * 100)
    figures.go_on(50.0)
    figures.runs.observe_all([20.0] * 100)
    figures.go_on(60.0)
    series = figures.history.series()
    assert 0.1 <= series["run_p50"][-2] <= 0.5 < 10 <= series["run_p50"][-1] <= 30  # type: ignore[operator]
    assert series["wait_p95"][-2:] == [None, None]


def test_a_percentile_lies_in_its_bucket() -> None:
    limits, infinite = (1.0, 10.0), float("inf")
    assert percentile((*limits, infinite), (10, 20, 20), 0.5) == 1.0
    assert percentile((*limits, infinite), (10, 20, 20), 0.75) == 5.5
    assert percentile((*limits, infinite), (0, 0, 5), 0.5) == 10.0
    assert percentile((*limits, infinite), (0, 0, 0), 0.5) is None
    assert percentile((), (), 0.5) is None
