"""The metrics of the consumer group of a Kafka store."""

from __future__ import annotations

from typing import Any

from supervisor.http.exposition import exposition
from supervisor.kafka.events import (
    CommitFailed,
    GroupFigures,
    OffsetsCommitted,
    PartitionFigures,
    PartitionsAssigned,
    PartitionsRevoked,
)
from supervisor.telemetry.metrics import Metrics

FIGURES = GroupFigures({
    "orders/0": PartitionFigures(committed=5, lag=10, undone=3, oldest=5, job_id=77, held_for=2.5),
    "orders/1": PartitionFigures(committed=None, lag=None, undone=0, oldest=None, job_id=None, held_for=None),
    "mail.v2/0": PartitionFigures(committed=7, lag=0, undone=0, oldest=None, job_id=None, held_for=None),
})  # fmt: skip


def after(*happened: Any) -> dict[str, Any]:
    metrics = Metrics()
    for event in happened:
        metrics(event)
    return {
        name.removeprefix("supervisor_kafka_"): value
        for name, value in metrics.snapshot().items()
        if name.startswith("supervisor_kafka_")
    }


def test_the_figures_are_by_topic_and_partition() -> None:
    assert after(FIGURES) == {
        "lag": {"orders": {"0": 10, "1": None}, "mail.v2": {"0": 0}},
        "committed_offset": {"orders": {"0": 5, "1": None}, "mail.v2": {"0": 7}},
        "buffered_records": {"orders": {"0": 3, "1": 0}, "mail.v2": {"0": 0}},
        "undone_since_seconds": {"orders": {"0": 2.5, "1": 0.0}, "mail.v2": {"0": 0.0}},
        "commit_failures_total": 0,
        "rebalances_total": 0,
    }


def test_a_partition_that_is_given_up_has_no_values_any_more() -> None:
    left = after(FIGURES, PartitionsRevoked(["orders/0", "mail.v2/0"], False, 3))
    assert left["lag"] == left["committed_offset"] == {"orders": {"1": None}}
    assert after(FIGURES, GroupFigures({}))["lag"] == {}


def test_rebalances_and_failed_commits_are_counted() -> None:
    failed, nothing = CommitFailed(["orders/0", "orders/1"], "no"), PartitionsAssigned([])
    counted = after(PartitionsAssigned(["orders/0"]), failed, failed, nothing, OffsetsCommitted({"orders/0": 1}))
    assert (counted["rebalances_total"], counted["commit_failures_total"]) == (2, 2)


def test_what_is_not_known_yet_has_no_sample() -> None:
    from prometheus_client.exposition import generate_latest

    metrics = Metrics()
    metrics(FIGURES)
    lines = exposition(metrics.snapshot(), generate_latest).decode().splitlines()
    assert [line for line in lines if line.startswith("supervisor_kafka_lag{")] == [
        'supervisor_kafka_lag{partition="0",topic="orders"} 10.0',
        'supervisor_kafka_lag{partition="0",topic="mail.v2"} 0.0',
    ]
