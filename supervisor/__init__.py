"""A folder of plain Python functions becomes supervised background workers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.client import Client
    from supervisor.errors import StoreError, StoreUnavailable, StoreUnsure
    from supervisor.handlers import Handler, Reject, Retry, handler
    from supervisor.hooks import Sink, hookimpl
    from supervisor.jobs import Job, NewJob

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

_MODULES = {
    "Client": "client",
    "StoreError": "errors",
    "StoreUnavailable": "errors",
    "StoreUnsure": "errors",
    "Handler": "handlers",
    "Reject": "handlers",
    "Retry": "handlers",
    "handler": "handlers",
    "Sink": "hooks",
    "hookimpl": "hooks",
    "Job": "jobs",
    "NewJob": "jobs",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a handler needs no store, and a command no plugins."""
    if name not in _MODULES:
        raise AttributeError(f"module 'supervisor' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"supervisor.{_MODULES[name]}"), name)
    return value
