"""The metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Described(NamedTuple):
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
    labels: tuple[str, ...]
    text: str


_COUNTER, _GAUGE, _HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
METRICS = {
    "supervisor_jobs_total": Described(_COUNTER, ("state",), "Jobs that ended in this supervisor."),
    "supervisor_retries_total": Described(_COUNTER, (), "Failed attempts after which the job is retried."),
    "supervisor_retry_exhausted_total": Described(_COUNTER, (), "Jobs that failed because no retry was left."),
    "supervisor_retry_latency_seconds": Described(_HISTOGRAM, (), "The backoff of each retry."),
    "supervisor_retry_wait_seconds": Described(_HISTOGRAM, (), "Time from the due time of a retry to its claim."),
    "supervisor_retry_success_ratio": Described(_GAUGE, (), "Share of the retries that succeeded."),
    "supervisor_retry_time_saved_seconds": Described(
        _HISTOGRAM, (), "Time that each retry did not wait behind fresh jobs."
    ),
    "supervisor_queue_depth": Described(_GAUGE, ("queue", "tier"), "Ready jobs, as seen at the last claim."),
    "supervisor_wait_time_seconds": Described(_HISTOGRAM, (), "Time from the due time of a job to its claim."),
    "supervisor_run_time_seconds": Described(_HISTOGRAM, ("handler",), "Time that an attempt ran."),
    "supervisor_leases_recovered_total": Described(_COUNTER, (), "Leases of lost owners that were recovered."),
    "supervisor_stale_outcomes_total": Described(_COUNTER, (), "Outcomes and leases that the store refused as stale."),
    "supervisor_workers_killed_total": Described(_COUNTER, ("cause",), "Workers that were killed or crashed."),
    "supervisor_dlq_published_total": Described(_COUNTER, ("sink",), "Dead letters that a sink has accepted."),
    "supervisor_dlq_publish_failures_total": Described(
        _COUNTER, ("sink",), "Dead letters that a sink has not accepted."
    ),
    "supervisor_hook_failures_total": Described(_COUNTER, ("hook",), "Hooks that raised an exception."),
    "supervisor_dropped_total": Described(_COUNTER, ("queue",), "Events that were dropped because a queue was full."),
}
"""The metrics of `Metrics.snapshot` by name."""


def exposition(snapshot: Mapping[str, Any]) -> bytes:
    """Return the metrics of `Metrics.snapshot` as text. A metric without a value yet has no sample."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(snapshot))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        for name, value in self._snapshot.items():
            described = METRICS[name]
            family: Any = described.kind(name, described.text, labels=described.labels)
            for labels, sample in _samples(value, len(described.labels)):
                if described.kind is _HISTOGRAM:
                    family.add_metric(labels, list(sample["buckets"].items()), sample["sum"])
                elif sample is not None:
                    family.add_metric(labels, sample)
            yield family


def _samples(value: Any, labels: int) -> Iterator[tuple[list[str], Any]]:
    """Yield each value with its labels: there is a mapping inside another for each label."""
    if not labels:
        yield [], value
        return
    for label, inner in value.items():
        for others, sample in _samples(inner, labels - 1):
            yield [label, *others], sample
