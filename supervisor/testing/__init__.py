"""The testing kit: the fixture `job_runner` of pytest, and the class of its value."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.testing.enqueued import EnqueuedJob
    from supervisor.testing.job_runner import JobRunner

__all__ = ["EnqueuedJob", "JobRunner"]

_MODULES = {"EnqueuedJob": "enqueued", "JobRunner": "job_runner"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that a run of pytest that needs none imports nothing."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
