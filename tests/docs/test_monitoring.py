"""The alerts, and the dashboard for Grafana: both use metrics that exist, and the alerts fire when they should."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.http.exposition import METRICS
from tests.docs.pages import ROOT, page
from tests.promtool import promtool

ALERTS = ROOT / "etc/alerts.yml"
OF_PROMETHEUS = {"job", "instance", "le"}
DASHBOARD: dict[str, Any] = json.loads((ROOT / "etc/grafana.json").read_text())


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def samples(name: str) -> set[str]:
    """Return the names of the samples of a metric."""
    if METRICS[name].kind.__name__.startswith("Histogram"):
        return {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return {name}


SAMPLES = {sample: METRICS[name] for name in METRICS for sample in samples(name)}


def used(query: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each sample of a query, with the labels that are selected or that the aggregation around it groups by."""
    grouped = {label for labels in re.findall(r"\bby \(([^)]*)\)", query) for label in labels.split(", ")}
    for name, selected in re.findall(r"\b(supervisor_\w+)(?:\{([^}]*)\})?", query):
        yield name, {*re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selected), *grouped}


@pytest.mark.parametrize("query", [*(rule["expr"] for rule in rules()), *queries()])
def test_every_query_is_of_metrics_that_exist_with_their_labels(query: str) -> None:
    found = list(used(query))
    assert found
    for name, labels in found:
        assert name in SAMPLES, name
        assert labels <= {*SAMPLES[name].labels, *OF_PROMETHEUS}, (name, labels)


def test_every_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    text = json.dumps(DASHBOARD) + ALERTS.read_text()
    unseen = {name for name in METRICS if name not in text}
    assert unseen == {
        "supervisor_start_time_seconds",
        "supervisor_store_available",
        "supervisor_retry_time_saved_seconds",
    }


def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", str(ROOT / "tests/docs/alerts_test.yml"))


def test_every_alert_is_tested_and_says_what_to_do_with_a_link_into_the_documentation() -> None:
    tested = yaml.safe_load((ROOT / "tests/docs/alerts_test.yml").read_text())["tests"]
    cases = [(case["alertname"], bool(case["exp_alerts"])) for each in tested for case in each["alert_rule_test"]]
    headings = page("guides/monitoring.md").headings
    for rule in rules():
        name = rule["alert"]
        assert {fires for alert, fires in cases if alert == name} == {True, False}, name
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        assert rule["annotations"]["runbook"] == f"docs/guides/monitoring.md#{name.lower()}"
        assert name in headings


def test_the_dashboard_can_be_imported(tmp_path: Path) -> None:
    panels = DASHBOARD["panels"]
    assert DASHBOARD["title"] and DASHBOARD["uid"] and "id" not in DASHBOARD and DASHBOARD["schemaVersion"] >= 36
    variables = [each["name"] for each in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "job", "instance"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"] and panel["description"] and panel["type"] in ("stat", "timeseries")
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert {each["datasource"]["uid"] for each in (panel, *panel["targets"])} == {"${datasource}"}
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)


def test_the_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    known = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*"}
    recorded = []
    for number, query in enumerate(queries()):
        for variable, value in known.items():
            query = query.replace(variable, value)
        recorded.append({"record": f"query_{number}", "expr": query})
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "queries", "rules": recorded}]}))
    promtool("check", "rules", str(tmp_path / "queries.yml"))
