"""Trace each attempt of a job with OpenTelemetry, if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set.

A span `process QUEUE` for each attempt is a child of the span that has enqueued the job. Spans that a handler makes are its
children, and jobs that a handler enqueues are traced too. The supervisor makes the span of an attempt whose worker was killed or
has crashed. All settings are the environment variables of OpenTelemetry. Needs: pip install 'job-supervisor[otel]'.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
import traceback
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from supervisor import Job, Snooze, hookimpl
from supervisor import events as happened
from supervisor.client import tracing
from supervisor.plugins.failures import from_handler, type_name
from supervisor.plugins.importer import readable

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
ACTIVE = any(map(os.environ.get, ENDPOINTS)) and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
DIED = frozenset({"timeout", "crash", "heartbeat_lost", "memory_limit", "lease_expired"})
FLUSH_SECONDS = 2.5
EXPORT_EVERY = 1000
"""Milliseconds, unless OTEL_BSP_SCHEDULE_DELAY is set: a worker that is killed loses what it has not exported."""
MAX_CANCELLED = 1000
MAX_FRAMES = 50

if ACTIVE:
    try:
        from opentelemetry import context, propagate, trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ImportError(f"{error}: the plugin otel.py needs: pip install 'job-supervisor[otel]'") from None
    OTLPSpanExporter().shutdown()  # it imports what takes long: once here, and not in each worker


# --- the processes: each has a provider of its own, since its thread does not survive a fork


def _provider() -> Any:
    """Return the provider of this process: that of the program, or a new one."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({} if named else {"service.name": "job-supervisor"})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # its own flush at exit has no limit
        delay = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else EXPORT_EVERY
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=delay))
        trace.set_tracer_provider(provider)
    return provider


def _flush() -> None:
    """Export what is left, for a limited time: the collector may be down."""
    flushing = threading.Thread(target=trace.get_tracer_provider().force_flush, daemon=True)
    flushing.start()
    flushing.join(FLUSH_SECONDS)


def _parent(headers: Mapping[str, Any] | None) -> tuple[Any, list[Any]]:
    """Return the context of the span that has enqueued the job, and a link to it, as the conventions want beside a parent."""
    parent = propagate.extract(
        {name: text for name, text in (headers or {}).items() if isinstance(text, str)}, context.Context()
    )
    span = trace.get_current_span(parent).get_span_context()
    return parent, [trace.Link(span)] if span.is_valid else []


def _attributes(job_id: int, handler: str, queue: str, attempt: int) -> dict[str, Any]:
    return {
        "messaging.system": tracing.SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.message.id": str(job_id),
        "messaging.job_supervisor.handler": handler,
        "messaging.job_supervisor.attempt": attempt,
    }


def _note_failure(span: Any, kind: str, message: str, stack: str) -> None:
    described = {"exception.type": kind, "exception.message": message, "exception.stacktrace": stack}
    span.add_event("exception", {name: text for name, text in described.items() if text})
    span.set_attribute("error.type", kind)
    span.set_status(trace.Status(trace.StatusCode.ERROR, message[:1000]))


# --- in workers


def _started_span(job: Job) -> tuple[Any, Any]:
    """Return a span of this attempt, and the context in which it is the current one."""
    parent, links = _parent(job.headers)
    attributes = _attributes(job.id, job.handler, job.queue, job.attempt)
    tracer = trace.get_tracer("supervisor")
    span = tracer.start_span(f"process {job.queue}", parent, trace.SpanKind.CONSUMER, attributes, links)
    return span, trace.set_span_in_context(span, parent)


def _note_error(span: Any, error: BaseException) -> None:
    if isinstance(error, Snooze):  # nothing has failed
        return
    kind = type(error)
    stack = traceback.TracebackException(kind, error, from_handler(error.__traceback__, globals()), limit=-MAX_FRAMES)
    _note_failure(span, readable(type_name(kind)), str(error), readable("".join(stack.format())))


# --- in the supervisor


class Deaths:
    """Makes the spans of attempts whose workers can't, since they were killed or have crashed."""

    def __init__(self) -> None:
        self._cancelled: dict[int, Any] = {}  # leases, by the id of their job

    def note(self, events: Sequence[Any]) -> None:
        now = time.time()
        for event in events:
            match event:
                case happened.JobsSettled(outcomes, age):
                    self._note_outcomes(outcomes, now - age)
                case happened.LeasesRecovered(outcomes):
                    self._note_outcomes(outcomes, now)
                case happened.JobCancelled(lease):
                    self._cancelled[lease.id] = lease
                    if len(self._cancelled) > MAX_CANCELLED:
                        del self._cancelled[next(iter(self._cancelled))]
                case happened.WorkerExited(cause="cancelled", job_id=int(id), after=after):
                    if (lease := self._cancelled.pop(id, None)) is not None:
                        _died(lease, now, after, "cancelled", "the job was cancelled", "")

    def _note_outcomes(self, outcomes: Sequence[Any], ended: float) -> None:
        for outcome in outcomes:
            failure = outcome.failure
            # A worker that is alive reports the traceback, and has ended the span itself.
            if failure is not None and failure.cause.value in DIED and not failure.traceback:
                stack = failure.stack or ""
                _died(outcome.lease, ended, outcome.took, failure.cause.value, failure.message, stack)


def _died(lease: Any, ended: float, took: float | None, kind: str, message: str, stack: str) -> None:
    _provider()
    parent, links = _parent(_headers(lease.headers))
    attributes = _attributes(lease.id, lease.handler, lease.queue, lease.attempt)
    began = int((ended - (took or 0.0)) * 1e9)
    span = trace.get_tracer("supervisor").start_span(
        f"process {lease.queue}", parent, trace.SpanKind.CONSUMER, attributes, links, start_time=began
    )
    _note_failure(span, kind, message, stack)
    span.end(int(ended * 1e9))


def _headers(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


if ACTIVE:
    _DEATHS = Deaths()

    @hookimpl
    def supervisor_worker_started() -> None:
        _provider()
        tracing.instrument()

    @hookimpl
    def supervisor_worker_stopping() -> None:
        _flush()

    @hookimpl(wrapper=True)
    def supervisor_run(job: Job) -> Generator[None, Any, Any]:
        span, with_span = _started_span(job)
        token = context.attach(with_span)
        try:
            return (yield)
        except BaseException as error:
            _note_error(span, error)
            raise
        finally:
            span.end()
            context.detach(token)

    @hookimpl
    def supervisor_started() -> None:
        _provider()
        atexit.register(_flush)

    @hookimpl
    def supervisor_events(events: Sequence[Any]) -> None:
        _DEATHS.note(events)
