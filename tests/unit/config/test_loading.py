from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.loading import find, load
from supervisor.config.retries import RetrySettings
from supervisor.config.settings import RetentionSettings, Settings
from supervisor.errors import ConfigError
from supervisor.jobs import Backoff
from tests.config_keys import known_keys


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "{}", "\ufeff"])
def test_an_empty_file_is_all_defaults(write: Any, text: str) -> None:
    path = write(text)
    assert load(path, {}) == Settings(path=path, base=path.parent)


def test_headings_without_keys_are_defaults(write: Any) -> None:
    assert load(write("workers:\nretry:\nqueues:\nhandlers:\ndlq:\n"), {}).retry == RetrySettings()


def test_the_file_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find({}) is None
    assert load(None, {}).path is None
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/supervisor.yaml").write_text("workers: {count: 7}")
    assert load(None, {}).workers.count == 7
    (tmp_path / "supervisor.yaml").write_text("workers: {count: 8}")
    assert load(None, {}).workers.count == 8
    (tmp_path / "named.yaml").write_text("workers: {count: 9}")
    assert load(None, {"SUPERVISOR_CONFIG": "named.yaml"}).workers.count == 9


def test_a_missing_file_is_named_with_the_variable_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope.yaml \(named by \$SUPERVISOR_CONFIG\): No such file"):
        load(None, {"SUPERVISOR_CONFIG": str(tmp_path / "nope.yaml")})
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path, {})


def test_relative_paths_are_relative_to_the_file(write: Any) -> None:
    settings = load(write("dlq: {sinks: [{type: file, path: dead.jsonl}, {type: file, name: b, path: /dead}]}"), {})
    assert settings.path is not None
    assert settings.base == settings.path.parent
    assert [sink.options["path"] for sink in settings.dlq.sinks] == [str(settings.base / "dead.jsonl"), "/dead"]


def test_units_are_converted(write: Any) -> None:
    settings = load(
        write(
            "workers: {timeout: none, max_memory: 512MB, max_jobs: 5, heartbeat_timeout: 2m, queues: [mail, 'no']}\n"
            "retry:\n  backoff: {base: 500ms, max: 2h, jitter: 200ms}\n  budget: {limit: 100, per: 1m}\n"
            "  max_in_flight: none\n  adaptive: on\n  fetch_ratio: 1\n"
            "retention: {failed: none, cancelled: 1d}\n"
        ),
        {},
    )
    assert settings.workers.timeout is None
    assert settings.workers.max_memory == 512_000_000
    assert settings.workers.max_jobs == 5
    assert settings.workers.queues == {"mail", "no"}
    assert settings.retry.backoff.curve == Backoff(0.5, 2.0, 7200.0, 0.2)
    assert settings.retry.budget is not None
    assert (settings.retry.budget.limit, settings.retry.budget.per) == (100, 60.0)
    assert settings.retry.max_in_flight is None
    assert settings.retry.adaptive
    assert settings.retry.fetch_ratio == 1
    assert (settings.retention.failed, settings.retention.cancelled) == (None, 86_400.0)


def test_jobs_may_be_kept_for_no_time_at_all(write: Any) -> None:
    retention = load(write("retention: {succeeded: 0s, cancelled: 0ms, failed: none}"), {}).retention
    assert (retention.succeeded, retention.cancelled, retention.failed) == (0.0, 0.0, None)
    assert RetentionSettings(succeeded=0, failed=None) == RetentionSettings(succeeded=0.0, failed=None)


def test_a_ratio_is_exact(write: Any) -> None:
    assert load(write("retry: {fetch_ratio: 0.1}"), {}).retry.fetch_ratio == Fraction(1, 10)


@pytest.mark.parametrize("text", ["store: sqlite:////tmp/a.db", "store: {url: sqlite:////tmp/a.db}"])
def test_a_store_may_be_text_or_a_mapping(write: Any, text: str) -> None:
    store = load(write(text), {}).store
    assert (store.url, store.scheme, store.options) == ("sqlite:////tmp/a.db", "sqlite", {})


def test_a_store_may_have_options_beside_the_default_url(write: Any) -> None:
    store = load(write("store: {synchronous: normal}"), {}).store
    assert (store.url, store.options) == ("sqlite:///jobs.db", {"synchronous": "normal"})


def test_a_store_of_a_plugin_has_a_type_and_no_url(write: Any) -> None:
    store = load(write("store: {type: redis, host: here}"), {}).store
    assert (store.url, store.scheme, store.options) == (None, "redis", {"host": "here"})


def test_a_password_is_not_shown(write: Any) -> None:
    store = load(write("store: redis://me:secret@host/0"), {}).store
    assert store.shown == "redis://me:***@host/0"


def test_plugins_may_be_a_list_or_a_mapping(write: Any) -> None:
    assert load(write("plugins: [a, b.py]"), {}).plugins.paths == ("a", "b.py")
    plugins = load(write("plugins: {paths: [a], import_timeout: 5s}"), {}).plugins
    assert (plugins.paths, plugins.import_timeout) == (("a",), 5.0)


def test_sinks_have_names_options_and_keys(write: Any) -> None:
    dlq = load(write("dlq: {sinks: [{type: file, path: /d}, {type: pager, name: night, key: k, options: 3}]}"), {}).dlq
    assert dlq.active
    assert [(sink.type, sink.name, sink.options, sink.key) for sink in dlq.sinks] == [
        ("file", "file", {"path": "/d"}, "dlq.sinks[0]"),
        ("pager", "night", {"key": "k", "options": 3}, "dlq.sinks[1]"),
    ]


def test_sinks_that_are_not_enabled_are_not_active(write: Any) -> None:
    assert not load(write("dlq: {enabled: false, sinks: [{type: file, path: /d}]}"), {}).dlq.active


def test_known_keys_are_those_of_the_file() -> None:
    keys = known_keys()
    assert len(keys) == len(set(keys))
    assert {"store.url", "retry.backoff.base", "queues.<name>.retry.budget.per", "dlq.sinks[].type"} <= set(keys)
    assert not {"path", "base", "retry.curve", "dlq.sinks[].options", "dlq.sinks[].key"} & set(keys)
