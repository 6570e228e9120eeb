"""The text format of the metrics."""

from __future__ import annotations

from supervisor.http.exposition import METRICS, exposition
from supervisor.telemetry.metrics import Metrics
from tests.docs.pages import codes, page, rows


def test_every_metric_has_its_kind_and_labels_of_the_reference() -> None:
    written = {
        codes(name)[0]: (kind, tuple(codes(labels)))
        for name, kind, labels, _ in rows(page("reference/metrics.md").prose)
    }
    known = {name: (it.kind.__name__.removesuffix("MetricFamily").lower(), it.labels) for name, it in METRICS.items()}
    assert known == written
    assert known.keys() == Metrics().snapshot().keys()


def test_labels_are_escaped_and_a_metric_without_a_value_has_no_sample() -> None:
    snapshot = Metrics().snapshot()
    snapshot["supervisor_queue_depth"] = {'a"b\\\n': {"fresh": 2, "retry": 0}}
    text = exposition(snapshot).decode()
    assert r'supervisor_queue_depth{queue="a\"b\\\n",tier="fresh"} 2.0' in text
    assert "\nsupervisor_retry_success_ratio " not in text
    assert 'supervisor_wait_time_seconds_bucket{le="+Inf"} 0.0' in text
