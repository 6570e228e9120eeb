"""The plugin otel.py under a real supervisor, with a collector that decodes what it exports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from tests.collector import Collector
from tests.system.command import ROOT, Command

JOBS = """
    import asyncio, os, time
    from supervisor import Client, handler
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

    @handler(timeout="500ms", max_retries=0)
    def hangs(job):
        time.sleep(60)

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
            jobs.enqueue(name, "once")
"""


@pytest.fixture
def collector(command: Command) -> Iterator[Collector]:
    collector = Collector()
    command.env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}
    command.write(config="workers: {count: 1}\ndlq: {enabled: false}\n", plugins={"jobs.py": JOBS})
    shutil.copy(ROOT / "plugins" / "otel.py", command.folder / "plugins")
    yield collector
    collector.close()


def enqueue_traced(command: Command, *names: str) -> None:
    code = textwrap.dedent(PROGRAM)
    subprocess.run([sys.executable, "-c", code, *names], cwd=command.folder, env=command.env, check=True)


@pytest.mark.parametrize("handler", ["sync", "coroutine"])
def test_a_failed_attempt_and_its_retry_are_children_of_the_span_that_has_enqueued_the_job(
    command: Command, collector: Collector, handler: str
) -> None:
    enqueue_traced(command, handler)
    assert command.run("--drain").wait() == 0
    request, sent = collector.wait("request", "send default")
    first, second = sorted(collector.wait(*["process default"] * 2), key=lambda span: not span.is_error)
    (id,) = [job["id"] for job in command.jobs()]
    assert (sent.kind, sent.parent, sent.trace) == ("producer", request.id, request.trace)
    assert sent.attributes == {
        "messaging.system": "job_supervisor",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default",
        "messaging.message.id": str(id),
        "messaging.job_supervisor.handler": handler,
    }
    for attempt, span in enumerate((first, second), 1):
        assert (span.kind, span.parent, span.links, span.trace) == ("consumer", sent.id, [sent.id], request.trace)
        assert span.attributes["messaging.job_supervisor.attempt"] == attempt
        assert span.attributes["messaging.message.id"] == str(id)
        assert span.service == "job-supervisor"
    assert (first.is_error, first.attributes["error.type"], second.is_error) == (True, "LookupError", False)
    (event,) = first.events
    assert (event["exception.type"], event["exception.message"]) == ("LookupError", "no paper")
    assert 'raise LookupError("no paper")' in event["exception.stacktrace"]
    assert "middleware" not in event["exception.stacktrace"]
    assert [span.parent for span in collector.named(f"inside {handler}")] in (
        [first.id, second.id],
        [second.id, first.id],
    )


@pytest.mark.parametrize(("handler", "cause"), [("hangs", "timeout"), ("crashes", "crash")])
def test_an_attempt_that_its_worker_has_not_survived_has_a_span_of_the_supervisor(
    command: Command, collector: Collector, handler: str, cause: str
) -> None:
    enqueue_traced(command, handler)
    assert command.run("--drain").wait() == 0
    sent, died = collector.wait("send default", "process default")
    assert (died.trace, died.parent, died.links) == (sent.trace, sent.id, [sent.id])
    assert (died.is_error, died.attributes["error.type"]) == (True, cause)
    assert died.seconds >= (0.4 if cause == "timeout" else 0.0)
    assert len(collector.named("process default")) == 1
    if cause == "timeout":
        assert "in hangs" in died.events[0]["exception.stacktrace"]


def test_a_job_that_a_handler_enqueues_belongs_to_the_same_trace(command: Command, collector: Collector) -> None:
    command.enqueue("parent", str(command.folder / "jobs.db"))
    assert command.run("--drain").wait() == 0
    parent, child = sorted(
        collector.wait(*["process default"] * 2), key=lambda span: span.attributes["messaging.message.id"]
    )
    (sent,) = collector.wait("send default")
    assert (sent.parent, child.parent, child.trace) == (parent.id, sent.id, parent.trace)
    assert (parent.parent, parent.links) == ("", [])


def test_a_collector_that_is_down_holds_up_no_job(command: Command, collector: Collector) -> None:
    command.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:9"
    ids = [command.enqueue("sync") for _ in range(20)]
    run = command.run()
    for id in ids:
        assert command.until(id, "succeeded")["state"] == "succeeded"
    run.end()


def test_without_the_package_the_error_names_the_extra(command: Command, collector: Collector) -> None:
    (command.folder / "opentelemetry").mkdir()
    (command.folder / "opentelemetry" / "__init__.py").write_text("raise ImportError('No module named opentelemetry')")
    command.env["PYTHONPATH"] = os.pathsep.join([str(command.folder), command.env.get("PYTHONPATH", "")])
    ended = command.call("check")
    assert "otel.py needs: pip install 'job-supervisor[otel]'" in ended.out + ended.err
    del command.env["OTEL_EXPORTER_OTLP_ENDPOINT"]
    (command.folder / "plugins" / "jobs.py").unlink()
    ended = command.call("check")
    assert "otel.py needs" not in ended.out + ended.err
