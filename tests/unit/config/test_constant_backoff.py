"""`exponential: false`: delays that do not grow."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.client.new_jobs import enqueue_row
from supervisor.config.loading import load
from supervisor.config.retries import BackoffSettings
from supervisor.config.settings import Settings
from supervisor.errors import InvalidJob
from supervisor.jobs import Backoff, NewJob


def test_the_delays_are_equal(write: Any) -> None:
    settings = load(write("retry: {backoff: {base: 2s, exponential: false, jitter: none}}"), {})
    assert settings.policy("h", "q", {}).backoff == Backoff(2.0, 1.0, 30.0, "none")


def test_a_factor_that_is_written_nearer_to_the_job_counts(write: Any) -> None:
    text = """
retry: {backoff: {exponential: false}}
queues: {grows: {retry: {backoff: {factor: 3}}}}
handlers: {constant: {backoff: {exponential: false}}}
"""
    settings = load(write(text), {})
    assert settings.policy("h", "q", {}).backoff.factor == 1
    assert settings.policy("h", "grows", {}).backoff.factor == 3
    assert settings.policy("constant", "grows", {}).backoff.factor == 1


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("retry: {backoff: {factor: 3, exponential: false}}", "retry.backoff"),
        ("queues: {q: {retry: {backoff: {factor: 3, exponential: false}}}}", "queues.q.retry.backoff"),
        ("handlers: {h: {backoff: {factor: 3, exponential: false}}}", "handlers.h.backoff"),
    ],
)
def test_a_factor_beside_it_is_a_contradiction(errors: Any, text: str, key: str) -> None:
    assert errors(text) == [
        f"supervisor.yaml:1: {key}.exponential: expected no factor beside exponential: false, which makes all delays equal, got false"
    ]


def test_a_factor_beside_it_is_refused_in_python_too() -> None:
    with pytest.raises(ValueError, match="exponential: expected no factor beside exponential: false"):
        BackoffSettings(factor=3, exponential=False)
    with pytest.raises(InvalidJob, match=r"backoff\.exponential: expected no factor"):
        enqueue_row(Settings(), NewJob("h", backoff={"factor": 3, "exponential": False}))  # type: ignore[arg-type]


def test_a_job_may_have_it() -> None:
    row = enqueue_row(Settings(), NewJob("h", backoff={"base": 2, "exponential": False}))  # type: ignore[arg-type]
    assert row.backoff == Backoff(2.0, 1.0, 30.0, "full")
