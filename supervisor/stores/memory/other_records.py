"""The dead letters and the owners of a memory store."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.stores.records import Presence
from supervisor.stores.sinks import Sinks


@dataclass(slots=True)
class DeadLetterRecord:
    due_at: int
    token: int = 0
    tries: int = 0
    accepted: Sinks = frozenset()
    owed: Sinks = frozenset()
    state: str | None = "pending"


@dataclass(slots=True)
class OwnerRecord:
    host: str
    pid: int
    seen_at: int
    notification_pipe: tuple[int, int]
    presence: Presence = field(default_factory=lambda: Presence("starting"))
    sinks: Sinks = frozenset()
