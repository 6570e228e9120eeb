"""The metrics in the text formats of Prometheus and of OpenMetrics, rendered on a thread of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from supervisor.engine.tasks import drop_error
from supervisor.http.gauges import Gauges
from supervisor.http.view import View
from supervisor.threads import started_executor

Encoder = Callable[[CollectorRegistry], bytes]


class Described(NamedTuple):
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
    labels: tuple[str, ...]
    text: str


_COUNTER, _GAUGE, _HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
_PARTITION = ("topic", "partition")
METRICS = {
    "supervisor_jobs_total": Described(_COUNTER, ("state",), "Jobs that ended in this supervisor."),
    "supervisor_retries_total": Described(_COUNTER, (), "Failed attempts after which the job is retried."),
    "supervisor_snoozes_total": Described(_COUNTER, (), "Attempts whose handler has snoozed."),
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
    "supervisor_latency_seconds": Described(_HISTOGRAM, (), "Time from the last due time of a job to its end."),
    "supervisor_store_commit_seconds": Described(_HISTOGRAM, (), "Time that a commit to the store took."),
    "supervisor_leases_recovered_total": Described(_COUNTER, (), "Leases of lost owners that were recovered."),
    "supervisor_stale_outcomes_total": Described(_COUNTER, (), "Outcomes and leases that the store refused as stale."),
    "supervisor_workers_killed_total": Described(_COUNTER, ("cause",), "Workers that were killed or crashed."),
    "supervisor_dlq_published_total": Described(_COUNTER, ("sink",), "Dead letters that a sink has accepted."),
    "supervisor_dlq_publish_failures_total": Described(
        _COUNTER, ("sink",), "Dead letters that a sink has not accepted."
    ),
    "supervisor_hook_failures_total": Described(_COUNTER, ("hook",), "Hooks that raised an exception."),
    "supervisor_dropped_total": Described(_COUNTER, ("queue",), "Events that were dropped because a queue was full."),
    "supervisor_schedule_jobs_total": Described(_COUNTER, ("schedule",), "Jobs that were enqueued for a schedule."),
    "supervisor_schedule_skipped_total": Described(
        _COUNTER, ("schedule",), "Fire times that were skipped, since the last job had not ended."
    ),
    "supervisor_schedule_missed_total": Described(
        _COUNTER, ("schedule",), "Fire times that have passed without a decision."
    ),
    "supervisor_kafka_lag": Described(_GAUGE, _PARTITION, "Records that are not done, up to the end of the partition."),
    "supervisor_kafka_committed_offset": Described(_GAUGE, _PARTITION, "The offset that is read next after a restart."),
    "supervisor_kafka_buffered_records": Described(_GAUGE, _PARTITION, "Fetched records that are not done."),
    "supervisor_kafka_undone_since_seconds": Described(
        _GAUGE, _PARTITION, "Time for which the oldest record that is not done has held the committed offset."
    ),
    "supervisor_kafka_commit_failures_total": Described(_COUNTER, (), "Commits of offsets that have failed."),
    "supervisor_kafka_rebalances_total": Described(_COUNTER, (), "Rebalances that this supervisor took part in."),
    "supervisor_build_info": Described(_GAUGE, ("version", "python"), "The versions of the supervisor and of Python."),
    "supervisor_start_time_seconds": Described(_GAUGE, (), "When the supervisor started, since the epoch."),
    "supervisor_ready": Described(_GAUGE, (), "1 if the supervisor claims and runs jobs, as /readyz."),
    "supervisor_not_ready": Described(_GAUGE, ("reason",), "1 for each reason of /readyz."),
    "supervisor_last_claim_timestamp_seconds": Described(_GAUGE, (), "When the store last answered a claim."),
    "supervisor_last_commit_timestamp_seconds": Described(_GAUGE, (), "When the store last did what it was asked for."),
    "supervisor_store_available": Described(_GAUGE, (), "1 if the store takes calls, else 0."),
    "supervisor_leases": Described(_GAUGE, (), "Leases that this supervisor holds."),
    "supervisor_oldest_ready_seconds": Described(
        _GAUGE, ("queue", "tier"), "Time since the due time of the ready job that waits longest, in the store."
    ),
    "supervisor_dead_letters_pending": Described(_GAUGE, ("sink",), "Dead letters that wait for a sink, in the store."),
    "supervisor_workers": Described(_GAUGE, ("group", "state"), "Workers by their state."),
    "supervisor_workers_wanted": Described(_GAUGE, ("group",), "Workers that there should be."),
    "supervisor_workers_memory_bytes": Described(_GAUGE, ("group",), "Resident memory of all workers."),
    "supervisor_largest_worker_memory_bytes": Described(_GAUGE, ("group",), "Resident memory of the largest worker."),
}
"""The metrics of `Metrics` and of `Gauges` by name."""


class Rendered(NamedTuple):
    text: bytes
    content_type: str


class Exposition:
    """Answers scrapes. The loop only takes the figures; those who ask at the same time share one rendering."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._executor = started_executor(1)
        self._started = time.time()
        self._gauges: Gauges | None = None
        self._under_way: dict[str, asyncio.Task[Rendered]] = {}

    async def answer(self, accept: str) -> Rendered:
        """Return all metrics in the format that the header Accept asks for."""
        try:
            encoder, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # prometheus_client compares what is in it as it comes
            encoder, content_type = choose_encoder("")
        task = self._under_way.get(content_type)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._render(encoder, content_type))
            self._under_way[content_type] = task
            task.add_done_callback(lambda _: self._under_way.pop(content_type))
            task.add_done_callback(drop_error)  # if nobody waits for it any more
        return await asyncio.shield(task)

    async def _render(self, encoder: Encoder, content_type: str) -> Rendered:
        loop = asyncio.get_running_loop()
        if self._gauges is None:
            self._gauges = Gauges(self._view, loop, self._started)
        gauges, counted = await self._gauges.snapshot(), self._view.metrics()
        text = await loop.run_in_executor(self._executor, lambda: exposition({**counted, **gauges()}, encoder))
        return Rendered(text, content_type)


def exposition(snapshot: Mapping[str, Any], encoder: Encoder) -> bytes:
    """Return these metrics as text. One without a value yet has no sample."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(snapshot))
    return encoder(registry)


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
