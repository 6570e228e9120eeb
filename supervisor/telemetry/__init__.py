"""The log and the metrics: subscribers of the events, and log lines on standard error that never hold the supervisor up."""

from __future__ import annotations

from supervisor.telemetry.log_handler import configure, stop
from supervisor.telemetry.log_subscriber import LogSubscriber

__all__ = ["LogSubscriber", "configure", "stop"]
