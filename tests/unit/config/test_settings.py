from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from supervisor.config.loading import load
from supervisor.config.settings import Settings
from supervisor.handlers import HandlerInfo
from supervisor.jobs import Backoff, Policy
from supervisor.stores.records import Retention


def test_settings_have_the_documented_defaults() -> None:
    settings = Settings()
    assert settings.store.url == "sqlite:///jobs.db"
    assert settings.plugins.paths == ("plugins",)
    assert settings.workers.count >= 1
    assert (settings.workers.timeout, settings.workers.heartbeat, settings.workers.heartbeat_timeout) == (300, 1, 30)
    assert settings.lease.ttl == 30
    assert settings.retry.max_retries == 3
    assert settings.retry.backoff.curve == Backoff(0.5, 2.0, 30.0, "full")
    assert settings.retry.fetch_ratio == Fraction(1, 5)
    assert (settings.retry.burst, settings.retry.max_in_flight, settings.retry.urgent) == (16, "half", 100)
    assert settings.retry.budget is None
    assert settings.retry.adaptive is False
    assert settings.shutdown.grace == 30
    assert settings.dlq.enabled
    assert not settings.dlq.active
    assert (settings.limits.payload, settings.limits.result) == (1_000_000, 1_000_000)
    assert (settings.log.level, settings.log.format) == ("info", "text")
    assert settings.unknown_handler.grace == 3600


def test_defaults_agree_with_the_plain_types() -> None:
    settings, retention = Settings(), Retention()
    assert settings.policy("any", "default", {}) == Policy()
    assert settings.retention.succeeded == retention.succeeded
    assert settings.retention.cancelled == retention.cancelled
    assert settings.retention.failed == retention.failed


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        Settings().workers.count = 3  # type: ignore[misc]


@pytest.fixture
def layered(write: Any) -> Settings:
    return load(
        write(
            "workers: {timeout: 1m}\n"
            "retry: {max_retries: 1, backoff: {base: 1s, factor: 3}, burst: 4}\n"
            "queues: {slow: {retry: {max_retries: 2, backoff: {max: 1h}}}}\n"
            "handlers: {mail: {queue: slow, timeout: none, backoff: {jitter: none}}}\n"
        ),
        {},
    )


def test_a_queue_overrides_only_the_keys_that_it_has(layered: Settings) -> None:
    assert layered.retry_for("slow").max_retries == 2
    assert layered.retry_for("slow").backoff.curve == Backoff(1.0, 3.0, 3600.0, "full")
    assert layered.retry_for("slow").burst == 4
    assert layered.retry_for("other") is layered.retry


def test_the_policy_of_a_handler_combines_all_levels(layered: Settings) -> None:
    written = {"mail": HandlerInfo("mail", {"timeout": "3s", "max_retries": 7, "backoff": {"base": "4s"}}, "f.py", 1)}
    assert layered.policy("mail", "slow", written) == Policy(7, Backoff(4.0, 3.0, 3600.0, "none"), None, 30.0)
    assert layered.policy("mail", "slow", {}) == Policy(2, Backoff(1.0, 3.0, 3600.0, "none"), None, 30.0)
    assert layered.policy("pdf", "default", {}) == Policy(1, Backoff(1.0, 3.0, 30.0, "full"), 60.0, 30.0)


def test_a_handler_may_have_a_queue(layered: Settings) -> None:
    assert layered.queue_for("mail") == "slow"
    assert layered.queue_for("pdf") == "default"


def test_none_in_yaml_goes_before_the_timeout_of_a_decorator(write: Any) -> None:
    settings = load(write("handlers: {mail: {timeout: none, heartbeat_timeout: none}}"), {})
    written = {"mail": HandlerInfo("mail", {"timeout": "3s", "heartbeat_timeout": 5}, "f.py", 1)}
    assert settings.policy("mail", "q", written)[2:] == (None, None)
    assert Settings().policy("mail", "q", written)[2:] == (3.0, 5.0)
