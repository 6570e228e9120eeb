"""Trace the enqueues of a program with OpenTelemetry, once `instrument` is called. Without it, nothing of this is imported.

The context of a span travels in the headers of its jobs (`traceparent` and `tracestate` of W3C Trace Context).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from importlib import import_module
from typing import Any, Protocol

import orjson

from supervisor.stores.records import EnqueueBatch

SYSTEM = "job_supervisor"
"""The `messaging.system` of spans."""


class Sender(Protocol):
    def send(self, batch: EnqueueBatch, enqueue: Callable[[EnqueueBatch], list[int]]) -> list[int]: ...


sender: Sender | None = None
"""Enqueues the jobs of all clients of this process, if it is set."""


def instrument() -> None:
    """Let all clients of this process make a span for each enqueue, with the tracer provider of OpenTelemetry that is global then.

    Raises ImportError if OpenTelemetry is not installed.
    """
    global sender
    sender = TracingSender()


class TracingSender:
    """Makes a span `send QUEUE` for each call, and injects its context into the jobs that have none."""

    def __init__(self) -> None:
        try:
            self._api: Any = import_module("opentelemetry.trace")
            self._propagate: Any = import_module("opentelemetry.propagate")
        except ImportError as error:
            raise ImportError(f"{error}: install job-supervisor[otel]") from error

    def send(self, batch: EnqueueBatch, enqueue: Callable[[EnqueueBatch], list[int]]) -> list[int]:
        queues = {row.queue for row in batch.kinds}
        queue = next(iter(queues)) if len(queues) == 1 else ""
        attributes: dict[str, Any] = {
            "messaging.system": SYSTEM, "messaging.operation.name": "send", "messaging.operation.type": "send",
        }  # fmt: skip
        if queue:
            attributes["messaging.destination.name"] = queue
        if len({row.handler for row in batch.kinds}) == 1:
            attributes["messaging.job_supervisor.handler"] = batch.kinds[0].handler
        if len(batch) != 1:
            attributes["messaging.batch.message_count"] = len(batch)
        headers = [orjson.loads(row.headers) if row.headers else {} for row in batch.kinds]
        tracer = self._api.get_tracer("supervisor")
        name, kind, links = f"send {queue}".strip(), self._api.SpanKind.PRODUCER, self._links(headers)
        with tracer.start_as_current_span(name, kind=kind, attributes=attributes, links=links) as span:
            try:
                ids = enqueue(self._injected(batch, headers))
            except Exception as error:
                span.set_attribute("error.type", f"{type(error).__module__}.{type(error).__qualname__}")
                raise
            if len(ids) == 1:
                span.set_attribute("messaging.message.id", str(ids[0]))
            return ids

    def _links(self, headers: list[MutableMapping[str, Any]]) -> list[Any]:
        """Return links to the contexts that the program itself has given its jobs: these stay as they are."""
        given = [texts_of(each) for each in headers if "traceparent" in each]
        spans = [self._api.get_current_span(self._propagate.extract(each)).get_span_context() for each in given]
        return [self._api.Link(span) for span in spans if span.is_valid]

    def _injected(self, batch: EnqueueBatch, headers: list[MutableMapping[str, Any]]) -> EnqueueBatch:
        """Return the batch with the context of the current span in the headers of its jobs."""
        for place, each in enumerate(headers):
            if "traceparent" not in each:
                self._propagate.inject(each)
                batch.kinds[place] = batch.kinds[place]._replace(headers=orjson.dumps(each).decode() if each else None)
        return batch


def texts_of(headers: MutableMapping[str, Any]) -> dict[str, str]:
    """Return the headers that are text, for the propagators, which expect nothing else."""
    return {name: value for name, value in headers.items() if isinstance(value, str)}
