"""The log of events, by a clock that the test sets."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from supervisor.telemetry import LogSubscriber


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock, caplog: pytest.LogCaptureFixture) -> Any:
    """Log events at debug level, and return their lines."""
    caplog.set_level(logging.DEBUG, "supervisor")
    subscriber = LogSubscriber(clock)

    def log(*happened: Any) -> list[str]:
        caplog.clear()
        for event in happened:
            subscriber(event)
        return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]

    return log
