from __future__ import annotations

from typing import Any

import pytest

from supervisor.config.contradictions import heartbeat_problems
from supervisor.config.loading import load
from supervisor.errors import ConfigError
from supervisor.handlers import HandlerInfo


@pytest.mark.parametrize(
    ("options", "config", "expected"),
    [
        ({"heartbeat": "100ms", "heartbeat_timeout": "600ms"}, "", []),
        ({"heartbeat_timeout": "none", "timeout": "1ms"}, "", []),
        ({}, "workers: {heartbeat: 20s}", []),  # reported of the config
        ({"heartbeat_timeout": 1}, "", ["heartbeat_timeout: expected at least twice its heartbeat, got 1"]),
        ({"heartbeat_timeout": 1}, "workers: {heartbeat: 500ms}", []),
        ({"heartbeat": "2s", "heartbeat_timeout": "3s"}, "", ["heartbeat: expected at most half of its heartbeat_timeout, got 2s"]),
        ({"heartbeat": "2s", "heartbeat_timeout": "3s"}, "handlers: {h: {heartbeat: 1s}}", []),
        ({"heartbeat": "2s", "heartbeat_timeout": "3s"}, "handlers: {h: {heartbeat: 9s, heartbeat_timeout: 9s}}", []),
        ({"heartbeat_timeout": "3s"}, "handlers: {h: {heartbeat: 2s}}", ["heartbeat_timeout: expected at least twice its heartbeat, got 3s"]),
        ({"heartbeat": "16s", "heartbeat_timeout": "none"}, "", ["heartbeat: expected at most half of lease.ttl, got 16s"]),
    ],
)  # fmt: skip
def test_the_heartbeat_of_a_decorator_is_compared_with_the_settings(
    write: Any, options: dict[str, Any], config: str, expected: list[str]
) -> None:
    try:
        settings = load(write(config), {})
    except ConfigError as error:
        assert error.settings is not None
        settings = error.settings
    found = heartbeat_problems(settings, HandlerInfo("h", options, "f.py", 1))
    assert found == [f"handler 'h': {problem}" for problem in expected]


def test_no_contradiction_is_reported_of_a_value_that_is_wrong_already(errors: Any) -> None:
    assert len(errors("workers: {heartbeat: 20, heartbeat_timeout: 1s}")) == 1
