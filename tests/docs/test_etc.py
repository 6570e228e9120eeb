"""The files in etc/ are right: the explained config has every key with its default, and the samples have their handlers."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor import Client
from supervisor.config.kafka import KafkaSettings
from supervisor.config.loading import load
from supervisor.config.settings import Settings
from supervisor.jobs import Backoff
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.retry import ceiling
from supervisor.stores.postgres.store import PostgresStore
from supervisor.text.units import format_duration
from tests.config_keys import known_keys
from tests.docs.pages import ROOT, page, rows
from tests.docs.store_options import store_options

STATE = Path("/var/lib/supervisor")


def uncommented() -> str:
    """Return the file with its examples (lines behind a bare #) in place of the defaults beside them."""
    lines: list[str | None] = []
    places: dict[tuple[str, str], int] = {}
    top = ""
    for line in (ROOT / "etc/supervisor.yaml").read_text().splitlines():
        example = re.match(r"(\s*)#(?! \S)(.*)", line)
        text = example[1] + example[2] if example else line
        key = re.match(r"(\s*)(\w+):", text)
        if key:
            top = top if key[1] else key[2]
            place = (top if key[1] else "", key[1] + key[2])
            if example and place in places:
                lines[places[place]] = None
            if not example:
                places[place] = len(lines)
        lines.append(text)
    return "\n".join(line for line in lines if line is not None)


def flattened(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, list):
        return {key for part in value for key in flattened(part, f"{prefix}[]")} if prefix == "dlq.sinks" else {prefix}
    if not isinstance(value, dict) or prefix.endswith((".group_shares", ".headers")):
        return {prefix}
    named = prefix in ("queues", "handlers", "schedules", "workers.groups")
    return {
        found
        for key, part in value.items()
        for found in flattened(part, f"{prefix}.{'<name>' if named else key}" if prefix else key)
    }


def test_the_explained_config_is_all_defaults() -> None:
    explained, defaults = load(ROOT / "etc/supervisor.yaml", {}), Settings()
    for name in {key.partition(".")[0] for key in known_keys()} - {"plugins", "store"}:
        assert getattr(explained, name) == getattr(defaults, name), name
    assert explained.store.url == defaults.store.url
    assert explained.plugins.import_timeout == defaults.plugins.import_timeout


def test_the_explained_config_has_every_key_and_no_other() -> None:
    document = yaml.safe_load(uncommented())
    assert flattened(document) - {"dlq.sinks[].path"} == {*known_keys(), *store_options("sqlite")}


def test_the_examples_in_the_explained_config_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(re.sub(r"^ +type: mystore.*$", "", uncommented(), flags=re.M))
    settings = load(path, {"HTTP_TOKEN": "of 16 characters"})
    assert settings.retry_for("reports").budget is not None
    assert len(settings.dlq.sinks) == 2


def test_every_leaf_of_the_explained_config_has_a_comment() -> None:
    for line in (ROOT / "etc/supervisor.yaml").read_text().splitlines():
        leaf = re.match(r"\s+\w+: [^{[\n]", line)
        assert leaf is None or "# " in line, line


# --- the rest of etc/


def test_the_config_for_postgresql_is_all_defaults_but_for_where_it_is() -> None:
    settings, defaults = load(ROOT / "etc/postgres.yaml", {}), Settings()
    assert settings.store.scheme == "postgresql"
    assert {f"store.{option}" for option in settings.store.options} == store_options("postgresql")
    defaults_of_store = inspect.signature(PostgresStore).parameters
    for option, value in settings.store.options.items():
        assert value == defaults_of_store[option].default, option
    assert settings.lease == defaults.lease
    assert all(report.error is None for report in _loaded(settings).reports)


def test_the_config_for_kafka_has_every_key_with_its_default(tmp_path: Path) -> None:
    settings = load(ROOT / "etc/kafka.yaml", {})
    store = _kafka(settings)
    assert store == KafkaSettings(bootstrap=store.bootstrap, group=store.group, topics=store.topics)
    written = yaml.safe_load((ROOT / "etc/kafka.yaml").read_text())["store"]
    leaves = {key: part if key == "buffer" else "any" for key, part in written.items()}
    assert flattened({"store": leaves}) == {*store_options("kafka"), "store.type"}
    shortest = tmp_path / "shortest.yaml"
    shortest.write_text("store: {type: kafka, bootstrap: 'k:9092', group: g, topics: [a]}")
    defaults = load(shortest, {})
    assert settings.retry.replace(max_retries=defaults.retry.max_retries) == defaults.retry
    assert (settings.dlq.enabled, settings.dlq.topic_suffix) == (defaults.dlq.enabled, defaults.dlq.topic_suffix)
    assert settings.unknown_handler == defaults.unknown_handler


def test_the_config_for_kafka_has_its_handlers() -> None:
    settings = load(ROOT / "etc/kafka.yaml", {})
    manager = _loaded(settings)
    assert all(report.error is None for report in manager.reports)
    assert {handler for handler in _kafka(settings).topics.values() if handler} <= manager.handlers.keys()


def test_the_examples_in_the_config_for_kafka_are_right(tmp_path: Path) -> None:
    from supervisor.stores.kafka.client_check import require_settings

    path = tmp_path / "kafka.yaml"
    text = (ROOT / "etc/kafka.yaml").read_text().replace("  kafka: {}", "")
    path.write_text(re.sub(r"^  #(?! \S)", "  ", text, flags=re.M))
    settings = load(path, {"KAFKA_PASSWORD": "sesame-0815", "HOSTNAME": "worker-17"})
    store = _kafka(settings)
    assert store.kafka["ssl.ca.location"] == f"{tmp_path}/ca.pem"
    assert settings.secrets == {"sesame-0815"}
    require_settings(store.replace(kafka={**store.kafka, "ssl.ca.location": "probe"}))


def _kafka(settings: Settings) -> KafkaSettings:
    assert settings.store.kafka is not None
    return settings.store.kafka


@pytest.mark.parametrize(
    ("name", "retries", "backoff"),
    [
        ("conservative", 5, Backoff(1.0, 2.0, 60.0, "full")),
        ("aggressive", 2, Backoff(0.1, 4.0, 5.0, "full")),
        ("one-shot", 0, Backoff()),
    ],
)
def test_presets(name: str, retries: int, backoff: Backoff) -> None:
    settings = load(ROOT / f"etc/{name}.yaml", {})
    policy = settings.policy("any handler", "default", {})
    assert (policy.max_retries, policy.backoff) == (retries, backoff)
    assert all(report.error is None for report in _loaded(settings).reports)


@pytest.mark.parametrize("name", ["conservative", "aggressive"])
def test_presets_come_with_their_true_delays(name: str) -> None:
    file = ROOT / f"etc/{name}.yaml"
    policy = load(file, {}).policy("any handler", "default", {})
    *others, last = [format_duration(ceiling(policy.backoff, n)) for n in range(1, policy.max_retries + 1)]
    delays = f"{policy.max_retries} retries, after at most {', '.join(others)} and {last}"
    assert f"{delays}." in file.read_text()
    assert delays in dict(rows(page("guides/retries.md").section("Ready-made settings")))[f"`{name}.yaml`"]


def test_the_sample_jobs_have_their_handlers(tmp_path: Path) -> None:
    manager = _loaded(load(ROOT / "etc/samples.yaml", {}))
    assert all(report.error is None for report in manager.reports)
    jobs = [json.loads(line) for line in (ROOT / "etc/samples.jsonl").read_text().splitlines()]
    with Client(f"sqlite:///{tmp_path}/jobs.db", create=True) as client:
        client.enqueue_many(jobs)
    served = {"checksum", "flaky", "hang", "crash", "always_fails"}
    assert {job["handler"] for job in jobs} == set(manager.handlers) == served


def test_the_service_outwaits_the_drain() -> None:
    unit = (ROOT / "etc/supervisor.service").read_text()
    stop = re.search(r"^TimeoutStopSec=(\d+)s$", unit, re.M)
    assert stop
    assert int(stop[1]) > Settings().shutdown.grace
    assert f"sqlite:///{STATE}/jobs.db." in unit and f"\nStateDirectory={STATE.name}\n" in unit
    for line in ("Type=notify", "KillMode=mixed", "WatchdogSec=30s", "OOMPolicy=continue"):
        assert f"\n{line}\n" in unit


def _loaded(settings: Settings) -> PluginManager:
    manager = PluginManager()
    manager.load_all(discover(settings.plugins.paths, settings.base))
    return manager
