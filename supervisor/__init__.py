"""A folder of plain Python functions becomes supervised background workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.handlers import Handler, Reject, Retry, handler
from supervisor.hooks import Sink, hookimpl
from supervisor.jobs import Job, NewJob

if TYPE_CHECKING:
    from supervisor.client import Client

__all__ = ["Client", "Handler", "Job", "NewJob", "Reject", "Retry", "Sink", "handler", "hookimpl"]


def __getattr__(name: str) -> Any:
    # Client brings a store along; a handler that never enqueues must not pay for it.
    if name == "Client":
        from supervisor.client import Client

        return Client
    raise AttributeError(f"module 'supervisor' has no attribute {name!r}")
