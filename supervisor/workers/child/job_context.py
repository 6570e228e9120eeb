"""The context of each job: a fresh copy of the context that the plugins left, so that no job sees variables of another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

from supervisor.jobs import Job

CURRENT: ContextVar[Job | None] = ContextVar("supervisor_job", default=None)
"""The job of the running task, in an async worker."""


def fresh_contexts() -> Callable[[], Context]:
    """Return a function that returns a new copy of the current context. Hot path."""
    context = copy_context()
    decimal: Any = sys.modules.get("decimal")
    if decimal is None or not any(isinstance(value, decimal.Context) for value in context.values()):
        return context.copy
    # The decimal context is an object in a context variable, and jobs change that object: so each copy gets its own.
    pristine = context.run(decimal.getcontext).copy()

    def fresh() -> Context:
        copied = context.copy()
        copied.run(decimal.setcontext, pristine.copy())
        return copied

    return fresh
