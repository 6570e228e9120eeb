"""The plugin otel.py under a real supervisor, with a collector that decodes what it exports."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from tests.collector import Collector, Span
from tests.system.command import ROOT, Command

JOBS = """
    import asyncio, os, time
    from supervisor import Client, Snooze, handler
    from opentelemetry import trace

    def work(job, name):
        with trace.get_tracer("jobs").start_as_current_span(name):
            pass
        if job.payload == "once" and job.attempt == 1:
            raise LookupError("no paper")

    @handler(backoff={"base": "1ms", "jitter": "none"})
    def sync(job):
        work(job, "inside sync")

    @handler(backoff={"base": "1ms", "jitter": "none"})
    async def coroutine(job):
        await asyncio.sleep(0)
        work(job, "inside coroutine")

    @handler(max_retries=0)
    def snoozes(job):
        if not os.path.exists("woken"):
            open("woken", "w").close()
            raise Snooze("10ms")

    @handler(timeout="500ms", max_retries=0)
    def hangs(job):
        time.sleep(3600)

    @handler(max_retries=0)
    def crashes(job):
        os.abort()

    @handler
    def parent(job):
        with Client("sqlite:///" + job.payload) as jobs:
            return jobs.enqueue("sync")
"""
PROGRAM = """
    import sys
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from supervisor import Client
    from supervisor.client.tracing import instrument

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    instrument()
    jobs = Client("sqlite:///jobs.db", create=True)
    with trace.get_tracer("shop").start_as_current_span("request"):
        for name in sys.argv[1:]:
            jobs.enqueue(name, "once", queue="killed" if name in ("hangs", "crashes") else None)
"""

# A worker that is killed loses the spans that it has not sent yet, so jobs with this fate have workers of their own.
SLOW_MACHINE = 60.0  # seconds: each worker imports the SDK's parts and makes a provider
CONFIG = "workers: {count: 1, groups: {killed: {count: 1, queues: [killed]}}}"


@pytest.fixture
def collector(command: Command) -> Iterator[Collector]:
    collector = Collector()
    command.env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}
    command.write(config=CONFIG, plugins={"jobs.py": JOBS})
    shutil.copy(ROOT / "plugins" / "otel.py", command.folder / "plugins")
    yield collector
    collector.close()


def enqueue_traced(command: Command, *names: str) -> None:
    code = textwrap.dedent(PROGRAM)
    subprocess.run([sys.executable, "-c", code, *names], cwd=command.folder, env=command.env, check=True)


def test_each_attempt_has_a_span_below_that_which_has_enqueued_the_job(command: Command, collector: Collector) -> None:
    enqueue_traced(command, "sync", "coroutine", "hangs", "crashes")
    parent = command.enqueue("parent", str(command.folder / "jobs.db"))
    assert command.run("--drain").wait(SLOW_MACHINE) == 0
    collector.wait(
        "request", *["send default"] * 3, *["send killed"] * 2, *["process default"] * 6, *["process killed"] * 2
    )
    for handler in ("sync", "coroutine"):
        check_retried(collector, handler)
    for handler, cause in (("hangs", "timeout"), ("crashes", "crash")):
        check_died(collector, handler, cause)
    check_child(collector, parent)


def spans_of(collector: Collector, handler: str) -> tuple[Span, list[Span]]:
    """Return the span that has enqueued the first job of a handler, and the spans of its attempts in order."""
    spans = [span for span in collector.spans if span.attributes.get("messaging.job_supervisor.handler") == handler]
    sent = next(span for span in spans if span.kind == "producer")
    attempts = [span for span in spans if span.kind == "consumer" and span.parent == sent.id]
    return sent, sorted(attempts, key=lambda span: int(span.attributes["messaging.job_supervisor.attempt"]))


def check_retried(collector: Collector, handler: str) -> None:
    (request,) = collector.named("request")
    sent, (first, second) = spans_of(collector, handler)
    id = sent.attributes["messaging.message.id"]
    assert (sent.kind, sent.parent, sent.trace) == ("producer", request.id, request.trace)
    assert sent.attributes == {
        "messaging.system": "job_supervisor",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default",
        "messaging.message.id": id,
        "messaging.job_supervisor.handler": handler,
    }
    for span in (first, second):
        assert (span.name, span.kind, span.trace) == ("process default", "consumer", request.trace)
        assert (span.links, span.service, span.attributes["messaging.message.id"]) == ([sent.id], "job-supervisor", id)
    assert (first.is_error, first.attributes["error.type"], second.is_error) == (True, "LookupError", False)
    (event,) = first.events
    assert (event["exception.type"], event["exception.message"]) == ("LookupError", "no paper")
    assert 'raise LookupError("no paper")' in event["exception.stacktrace"]
    assert "middleware" not in event["exception.stacktrace"]
    assert {first.id, second.id} <= {span.parent for span in collector.named(f"inside {handler}")}


def check_died(collector: Collector, handler: str, cause: str) -> None:
    """The worker of the attempt can't have made its span."""
    sent, (died,) = spans_of(collector, handler)
    assert (died.trace, died.links) == (sent.trace, [sent.id])
    assert (died.is_error, died.attributes["error.type"]) == (True, cause)
    if cause == "timeout":
        assert died.seconds >= 0.4
        assert died.events[0]["exception.stacktrace"]


def check_child(collector: Collector, parent_id: int) -> None:
    """A job that a handler has enqueued belongs to the trace of that handler's job, which has begun one."""
    (parent,) = (span for span in collector.spans if span.attributes.get("messaging.message.id") == str(parent_id))
    (sent,) = (span for span in collector.named("send default") if span.parent == parent.id)
    (child,) = (span for span in collector.named("process default") if span.parent == sent.id)
    assert (parent.parent, parent.links, child.trace) == ("", [], parent.trace)


def test_an_attempt_that_snoozes_is_no_error(command: Command, collector: Collector) -> None:
    enqueue_traced(command, "snoozes")
    assert command.run("--drain").wait(SLOW_MACHINE) == 0
    collector.wait("request", "send default", *["process default"] * 2)
    _, attempts = spans_of(collector, "snoozes")
    assert [(span.is_error, span.events) for span in attempts] == [(False, [])] * 2


def test_servers_that_are_down_hold_up_no_job(command: Command, collector: Collector) -> None:
    shutil.copy(ROOT / "plugins" / "sentry.py", command.folder / "plugins")
    command.env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "SENTRY_DSN": "http://key@127.0.0.1:9/1"}
    good, bad = [command.enqueue("sync") for _ in range(3)], command.enqueue("crashes")
    assert command.run("--drain").wait(SLOW_MACHINE) == 0
    assert [command.job(id)["state"] for id in [*good, bad]] == ["succeeded"] * 3 + ["failed"]
