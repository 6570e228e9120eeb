"""A folder of plain Python functions becomes supervised background workers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from supervisor.errors import StoreError, StoreUnavailable, StoreUnsure
from supervisor.handlers import Handler, Reject, Retry, handler
from supervisor.hooks import Sink, hookimpl
from supervisor.jobs import Job, NewJob

if TYPE_CHECKING:
    from supervisor.client import Client

__all__ = [
    "Client",
    "Handler",
    "Job",
    "NewJob",
    "Reject",
    "Retry",
    "Sink",
    "StoreError",
    "StoreUnavailable",
    "StoreUnsure",
    "handler",
    "hookimpl",
]


def __getattr__(name: str) -> Any:
    """Import the Client when it is first asked for: it brings a store along, which a handler may never need."""
    if name == "Client":
        return import_module("supervisor.client").Client
    raise AttributeError(f"module 'supervisor' has no attribute {name!r}")
