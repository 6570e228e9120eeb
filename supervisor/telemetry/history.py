"""The last hour of the metrics by minute, in memory: the charts of the dashboard."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from supervisor.telemetry.metrics import PREFIX

PERIOD = 10.0  # seconds between two samples
MINUTES = 60
_MINUTE = 60.0
_KEPT = round(MINUTES * _MINUTE / PERIOD) + 1

Numbers = list[float | None]
"""One number for each of the last MINUTES, oldest first; None where nothing is known."""


class _Buckets(NamedTuple):
    """The cumulative counts of a histogram by upper limit."""

    limits: tuple[float, ...]
    counts: tuple[int, ...]


class _Sample(NamedTuple):
    at: float
    finished: int
    failed: int
    retried: int
    fresh: int
    retries: int
    latencies: _Buckets
    waits: _Buckets
    runs: _Buckets


class History:
    """Call `sample` every PERIOD seconds. `snapshot` is that of the metrics, whose counts only grow."""

    def __init__(self, snapshot: Callable[[], Mapping[str, Any]], clock: Callable[[], float] = time.monotonic) -> None:
        self._snapshot, self._clock = snapshot, clock
        self._samples: deque[_Sample] = deque(maxlen=_KEPT)

    def sample(self) -> None:
        found = {name.removeprefix(PREFIX): value for name, value in self._snapshot().items()}
        jobs, ready = found["jobs_total"], found["queue_depth"].values()
        self._samples.append(
            _Sample(
                at=self._clock(),
                finished=jobs["succeeded"] + jobs["failed"],
                failed=jobs["failed"],
                retried=found["retries_total"],
                fresh=sum(each["fresh"] for each in ready),
                retries=sum(each["retry"] for each in ready),
                latencies=_buckets([found["latency_seconds"]]),
                waits=_buckets([found["wait_time_seconds"]]),
                runs=_buckets(found["run_time_seconds"].values()),
            )
        )

    def series(self) -> dict[str, Numbers]:
        """Return `finished`, `failed` (for good) and `retried` a minute; the jobs that were ready, `fresh` and `retries`; and percentiles
        in seconds, such as `latency_p95`, of `latency`, `wait` and `run`. May be called on any thread: it takes milliseconds."""
        last = self._clock() // _MINUTE
        steps: dict[int, list[tuple[_Sample, _Sample]]] = {}
        for before, after in pairwise(tuple(self._samples)):
            steps.setdefault(MINUTES - 1 - int(last - after.at // _MINUTE), []).append((before, after))
        minutes = [steps.get(minute, []) for minute in range(MINUTES)]
        return {
            **{name: [_rate(each, name) for each in minutes] for name in ("finished", "failed", "retried")},
            **{name: [_at_end(each, name) for each in minutes] for name in ("fresh", "retries")},
            **{
                f"{name}_p{percent}": [_percentile(each, buckets, percent / 100) for each in minutes]
                for name, buckets in (("latency", "latencies"), ("wait", "waits"), ("run", "runs"))
                for percent in (50, 95)
            },
        }


def _buckets(histograms: Iterable[Mapping[str, Any]]) -> _Buckets:
    all_counts = [histogram["buckets"] for histogram in histograms]
    if not all_counts:
        return _Buckets((), ())
    limits = tuple(map(float, all_counts[0]))
    return _Buckets(limits, tuple(map(sum, zip(*(counts.values() for counts in all_counts), strict=True))))


def _rate(steps: Sequence[tuple[_Sample, _Sample]], name: str) -> float | None:
    """Return how many a minute."""
    seconds = sum(after.at - before.at for before, after in steps)
    if seconds <= 0:
        return None
    number: int = sum(getattr(after, name) - getattr(before, name) for before, after in steps)
    return number * _MINUTE / seconds


def _at_end(steps: Sequence[tuple[_Sample, _Sample]], name: str) -> float | None:
    return float(getattr(steps[-1][1], name)) if steps else None


def _percentile(steps: Sequence[tuple[_Sample, _Sample]], name: str, share: float) -> float | None:
    if not steps:
        return None
    before: _Buckets = getattr(steps[0][0], name)
    after: _Buckets = getattr(steps[-1][1], name)
    earlier = before.counts or (0,) * len(after.counts)
    return percentile(after.limits, [late - early for late, early in zip(after.counts, earlier, strict=True)], share)


def percentile(limits: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return about the value below which this share of the values is, from cumulative counts by upper limit; the last limit is
    infinite, and values above the one before count as that one. None without values."""
    if not counts or not counts[-1]:
        return None
    rank, below, lower = share * counts[-1], 0, 0.0
    for limit, count in zip(limits[:-1], counts, strict=False):
        if count >= rank:
            return lower + (limit - lower) * (rank - below) / max(1, count - below)
        below, lower = count, limit
    return lower
