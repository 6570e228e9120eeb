"""A folder of plain Python functions becomes supervised background workers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from supervisor.handlers import Handler, Reject, Retry, handler
from supervisor.hooks import Sink, hookimpl
from supervisor.jobs import Job, NewJob

if TYPE_CHECKING:
    from supervisor.client.client import Client
    from supervisor.stores.protocol import StoreError, StoreUnavailable, StoreUnsure

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

# These bring a store along; a handler that never enqueues must not pay for it.
_ON_FIRST_USE = {
    "Client": "supervisor.client",
    "StoreUnavailable": "supervisor.stores.protocol",
    "StoreError": "supervisor.stores.protocol",
    "StoreUnsure": "supervisor.stores.protocol",
}


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module 'supervisor' has no attribute {name!r}")
