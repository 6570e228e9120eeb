"""Settings that have no effect beside others."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.config.loading import load
from supervisor.config.without_effect import without_effect
from supervisor.engine.current_config import emit_config_events
from supervisor.events import Bus, ConfigWarning
from supervisor.handlers import HandlerInfo

HEARTBEAT = "heartbeat_timeout: 1m has no effect, since the timeout of 20s ends the job before"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "dlq: {enabled: false, sinks: [{type: file, path: d}]}",
            "dlq.sinks: they get no dead letters, since dlq.enabled",
        ),
        ("workers: {max_memory: 1MB}", "workers.max_memory: 1MB is less than any worker has at its start"),
        ("workers: {count: 2}\nretry: {max_in_flight: 3}", "retry.max_in_flight: 3 is more than workers.count (2)"),
        ("workers: {count: 2}\nqueues: {q: {retry: {max_in_flight: 3}}}", "queues.q.retry.max_in_flight: 3 is more"),
        (
            "workers: {queues: [a], groups: {g: {queues: [b, c]}}}",
            "workers.groups.g.queues: workers.queues leaves out b, c, so its workers are not started",
        ),
        (
            "workers: {queues: [a, b], groups: {g: {queues: [b, c]}}}",
            "workers.groups.g.queues: workers.queues leaves out c, so its workers get no job of them",
        ),
        (
            "workers: {count: 2, queues: [b], groups: {g: {queues: [b]}}}",
            "workers.count: groups have all queues of workers.queues, so no other workers are started",
        ),
        (
            "workers: {count: 9, groups: {g: {queues: [b]}}}\nqueues: {b: {retry: {max_in_flight: 3}}}",
            "queues.b.retry.max_in_flight: 3 is more than workers.groups.g.count (1), so",
        ),
        ("workers: {timeout: 20s, heartbeat_timeout: 1m}", f"workers.{HEARTBEAT}"),
        ("handlers: {h: {timeout: 20s, heartbeat_timeout: 1m}}", f"handlers.h.{HEARTBEAT}"),
        ("workers: {timeout: 20s}\nhandlers: {h: {heartbeat_timeout: 1m}}", f"handlers.h.{HEARTBEAT}"),
    ],
)
def test_a_setting_without_effect_is_named_with_its_file_and_key(write: Any, text: str, warning: str) -> None:
    path = write(text)
    (found,) = without_effect(load(path, {}), [])
    assert found.startswith(f"{path}: {warning}")


def test_the_heartbeat_timeout_of_a_decorator_above_the_timeout_is_named_with_its_line(write: Any) -> None:
    decorated = HandlerInfo("h", {"heartbeat_timeout": "1m", "timeout": "20s"}, "p.py", 7)
    settings = load(write(""), {})
    assert list(without_effect(settings, [decorated])) == [f"p.py:7: handler 'h': {HEARTBEAT}"]
    settings = load(write("handlers: {h: {heartbeat_timeout: 10s}}"), {})
    assert list(without_effect(settings, [decorated])) == [], "the config overrides it"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dlq: {sinks: [{type: file, path: d}]}\nworkers: {count: 2, max_memory: 64MB}\nretry: {max_in_flight: 2}",
        "handlers: {h: {timeout: 2s}}",
        "workers: {timeout: none, heartbeat_timeout: 1h}",
    ],
)
def test_settings_with_an_effect_are_not_named(write: Any, text: str) -> None:
    assert list(without_effect(load(write(text), {}), [])) == []


def test_the_log_of_a_run_has_these_warnings_too(write: Any) -> None:
    bus, seen = Bus(), list[Any]()
    bus.subscribe(seen.append, ConfigWarning)
    emit_config_events(bus, [], load(write("workers: {max_memory: 1MB}"), {}))
    assert ["workers.max_memory: 1MB is less" in event.message for event in seen] == [True]
