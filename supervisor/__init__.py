"""A folder of plain Python functions becomes supervised background workers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.client import Client
    from supervisor.client.async_client import AsyncClient
    from supervisor.errors import (
        JobExists,
        JobFailed,
        JobNotFound,
        NotAccepted,
        StoreError,
        StoreUnavailable,
        StoreUnsure,
    )
    from supervisor.handlers import Handler, InvalidPayload, JobCancelled, JobTimeout, Reject, Retry, Snooze, handler
    from supervisor.hooks import Sink, hookimpl
    from supervisor.jobs import Job, NewJob
    from supervisor.parents import ParentResultsTooLarge
    from supervisor.stores.extras import ExistingId

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "ExistingId",
    "Handler",
    "InvalidPayload",
    "Job",
    "JobCancelled",
    "JobExists",
    "JobFailed",
    "JobNotFound",
    "JobTimeout",
    "NewJob",
    "NotAccepted",
    "ParentResultsTooLarge",
    "Reject",
    "Retry",
    "Sink",
    "Snooze",
    "StoreError",
    "StoreUnavailable",
    "StoreUnsure",
    "handler",
    "hookimpl",
]

_MODULES = {
    "client": ("Client",),
    "client.async_client": ("AsyncClient",),
    "errors": ("JobExists", "JobFailed", "JobNotFound", "NotAccepted", "StoreError", "StoreUnavailable", "StoreUnsure"),
    "handlers": ("Handler", "InvalidPayload", "JobCancelled", "JobTimeout", "Reject", "Retry", "Snooze", "handler"),
    "hooks": ("Sink", "hookimpl"),
    "jobs": ("Job", "NewJob"),
    "parents": ("ParentResultsTooLarge",),
    "stores.extras": ("ExistingId",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a handler needs no store, and a command needs no plugins."""
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"supervisor.{module}"), name)
            return value
    raise AttributeError(f"module 'supervisor' has no attribute {name!r}")
