"""Make a job of a handler's function and the arguments of its call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from supervisor.binding import bind
from supervisor.client import replacement
from supervisor.config.settings import Settings
from supervisor.errors import InvalidJob
from supervisor.handlers import InvalidPayload, handler_of

_binding = lru_cache(1024)(bind)


def job_of(
    settings: Settings, function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the handler, the payload, and the queue and priority of @handler where it has them and the config has no queue.

    Raises TypeError if the function could not be called with the arguments, and InvalidJob if their types do not fit.
    """
    try:
        handler = handler_of(function)
    except ValueError as error:
        raise InvalidJob(f"handler: {error}") from None
    try:
        payload = _binding(function).payload_of(*arguments, **named)
    except TypeError as error:
        raise TypeError(f"{handler.name}: {error}") from None
    except (InvalidPayload, ValueError) as error:
        raise InvalidJob(f"{handler.name}: {error}") from None
    job = {"handler": handler.name, "payload": payload}
    if (replaced := replacement.current()) is not None:
        replaced.enqueuing(function)
    own = settings.handlers.get(handler.name)
    if handler.queue is not None and not (own and own.queue):
        job["queue"] = handler.queue
    if handler.priority is not None:
        job["priority"] = handler.priority
    return job
