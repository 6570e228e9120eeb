"""A soft timeout must be below the timeout that applies to the same jobs."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.config.contradictions import handler_problems
from supervisor.config.loading import load
from supervisor.config.settings import Settings
from supervisor.engine.current_config import CurrentConfig
from supervisor.handlers import HandlerInfo
from supervisor.plugins.reports import SourceReport

LESS, MORE = "expected less than its timeout", "expected more than its soft_timeout"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("workers: {soft_timeout: 20s}", None),
        ("workers: {soft_timeout: 5m}", "workers.soft_timeout: expected less than workers.timeout, got 5m"),
        ("workers: {soft_timeout: 1h, timeout: none}", None),
        ("handlers: {h: {soft_timeout: 5m}}", f"handlers.h.soft_timeout: {LESS}, got 5m"),
        ("handlers: {h: {soft_timeout: 5m, timeout: 6m}}", None),
        ("handlers: {h: {soft_timeout: 30s, timeout: 30s}}", f"handlers.h.soft_timeout: {LESS}, got 30s"),
        ("workers: {soft_timeout: 1m}\nhandlers: {h: {timeout: 30s}}", f"handlers.h.timeout: {MORE}, got 30s"),
        ("workers: {soft_timeout: 1m}\nhandlers: {h: {timeout: 30s, soft_timeout: none}}", None),
        ("workers: {soft_timeout: 10m}\nhandlers: {h: {max_retries: 0}}", "workers.soft_timeout"),
        ("workers: {soft_timeout: 0s}", "workers.soft_timeout: expected a duration"),
        ("handlers: {h: {cancel_grace: 5}}", "handlers.h.cancel_grace: expected a duration"),
    ],
)
def test_a_soft_timeout_that_contradicts_the_timeout_is_named(errors: Any, config: str, expected: str | None) -> None:
    found = errors(config) if expected else []
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


@pytest.mark.parametrize("config", ["workers: {soft_timeout: 20s, cancel_grace: 3s}", "workers: {soft_timeout: none}"])
def test_a_soft_timeout_below_the_timeout_is_read(write: Any, config: str) -> None:
    load(write(config), {})


@pytest.mark.parametrize(
    ("options", "config", "expected"),
    [
        ({"soft_timeout": "20s", "timeout": "30s"}, "", []),
        ({"soft_timeout": "40s", "timeout": "30s"}, "", [f"soft_timeout: {LESS}, got 40s"]),
        ({"soft_timeout": "10m"}, "", [f"soft_timeout: {LESS}, got 10m"]),
        ({"soft_timeout": "10m"}, "workers: {timeout: none}", []),
        ({"soft_timeout": "20s"}, "handlers: {h: {timeout: 10s}}", [f"soft_timeout: {LESS}, got 20s"]),
        ({"timeout": "10s"}, "workers: {soft_timeout: 20s}", [f"timeout: {MORE}, got 10s"]),
        ({"soft_timeout": "10m"}, "handlers: {h: {soft_timeout: none}}", []),
    ],
)
def test_the_soft_timeout_of_a_decorator_is_compared_with_the_settings(
    write: Any, options: dict[str, Any], config: str, expected: list[str]
) -> None:
    found = handler_problems(load(write(config), {}), HandlerInfo("h", options, "f.py", 1))
    assert found == [f"handler 'h': {problem}" for problem in expected]


@pytest.mark.parametrize(
    ("options", "is_async", "general", "expected"),
    [
        ({}, False, None, None),
        ({}, False, 2.0, 2.0),
        ({"cancel_grace": "5s"}, False, 2.0, 5.0),
        ({"cancel_grace": "none"}, False, 2.0, None),
        ({}, True, 2.0, 1.0),
        ({"cancel_grace": "5s"}, True, 2.0, 5.0),
    ],
)
def test_the_grace_of_a_cancelled_job_is_that_of_its_handler_or_of_its_kind_of_workers(
    options: dict[str, Any], is_async: bool, general: float | None, expected: float | None
) -> None:
    info = HandlerInfo("h", options, "f.py", 1, is_async=is_async)
    config = CurrentConfig(Settings(workers={"cancel_grace": general}), [SourceReport("f.py", (info,))])
    assert config.cancel_grace("h") == expected
    assert config.cancel_grace("unknown") == general
