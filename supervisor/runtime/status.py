"""The status that USR1 writes to the log."""

from __future__ import annotations

from supervisor.engine.coordinator import Coordinator
from supervisor.events import Bus, StatusDumped
from supervisor.telemetry.metrics import Metrics


def emit_status(bus: Bus, engine: Coordinator, metrics: Metrics, owner: str, state: str) -> None:
    """Emit what the engine holds, each worker with its job, and every metric."""
    bus.emit(StatusDumped({**engine.status(owner, state), "metrics": metrics.snapshot()}))
