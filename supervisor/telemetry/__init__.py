"""The log: lines on standard error that never hold the supervisor up, and the subscriber that words what happened."""

from __future__ import annotations

from supervisor.telemetry.log_handler import configure, flush, stop
from supervisor.telemetry.log_subscriber import LogSubscriber

__all__ = ["LogSubscriber", "configure", "flush", "stop"]
