from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from supervisor import Job, events
from supervisor.jobs import Cause, Failure, JobState, Kind, Lease, Outcome, Policy
from supervisor.plugins.importer import forget, import_file

PLUGIN = Path(__file__).parents[3] / "plugins" / "otel.py"
PARENT = '{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","other":7}'


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def plugin(exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    forget(PLUGIN.parent)
    plugin = import_file(PLUGIN)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    monkeypatch.setattr(plugin.trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(plugin, "_provider", lambda: provider)
    yield plugin
    forget(PLUGIN.parent)


def lease(id: int, headers: str | None = PARENT) -> Lease:
    return Lease(id, 1, "mail", "post", "{}", headers, 1, 0, 0, 0, 0, Policy())


def failed(id: int, cause: Cause, trace: str = "", headers: str | None = PARENT) -> Outcome:
    failure = Failure(cause, cause.value, "why", trace)
    return Outcome(lease(id, headers), Kind.FAILED, took=2.0, failure=failure, state=JobState.FAILED)


def ids(spans: Any) -> list[str]:
    return [span.attributes["messaging.message.id"] for span in spans]


def test_only_attempts_without_a_living_worker_have_spans_of_the_supervisor(
    plugin: ModuleType, exported: InMemorySpanExporter
) -> None:
    settled = events.JobsSettled(
        [
            failed(1, Cause.TIMEOUT), failed(2, Cause.TIMEOUT, "Traceback"), failed(3, Cause.EXCEPTION, "Traceback"),
            failed(4, Cause.MEMORY_LIMIT), Outcome(lease(5), Kind.SUCCEEDED),
        ],
        1.0,
    )  # fmt: skip
    plugin.supervisor_events([settled, events.LeasesRecovered([failed(6, Cause.LEASE_EXPIRED)])])
    spans = exported.get_finished_spans()
    assert ids(spans) == ["1", "4", "6"]
    span = spans[0]
    assert (span.name, span.parent.span_id, span.links[0].context.span_id) == (
        "process post",
        0xB7AD6B7169203331,
        0xB7AD6B7169203331,
    )
    assert span.end_time - span.start_time == pytest.approx(2e9, abs=1e4)
    assert (span.attributes["error.type"], span.attributes["messaging.job_supervisor.attempt"]) == ("timeout", 2)


def test_a_cancelled_job_whose_worker_was_killed_has_a_span(plugin: ModuleType, exported: InMemorySpanExporter) -> None:
    exits = [events.WorkerExited(1, 101, "cancelled", "killed", id, "mail", 3.0) for id in (7, 8, None)]
    plugin.supervisor_events([events.JobCancelled(lease(7), 101), *exits])
    plugin.supervisor_events(exits)
    (span,) = exported.get_finished_spans()
    assert (span.attributes["messaging.message.id"], span.attributes["error.type"]) == ("7", "cancelled")


def test_of_many_cancelled_jobs_few_are_remembered(plugin: ModuleType) -> None:
    deaths = plugin.Deaths()
    deaths.note([events.JobCancelled(lease(id), 101) for id in range(5000)])
    assert len(deaths._cancelled) == plugin.MAX_CANCELLED


@pytest.mark.parametrize("headers", [None, "[]", "{", '{"traceparent":7}', '{"traceparent":"00-nonsense"}'])
def test_headers_without_a_context_begin_a_trace(
    plugin: ModuleType, exported: InMemorySpanExporter, headers: str | None
) -> None:
    plugin.supervisor_events([events.JobsSettled([failed(1, Cause.CRASH, headers=headers)], 0.0)])
    (span,) = exported.get_finished_spans()
    assert (span.parent, len(span.links)) == (None, 0)


def test_a_span_of_the_handler_is_a_child_and_none_is_current_after_the_job(
    plugin: ModuleType, exported: InMemorySpanExporter
) -> None:
    steps = plugin.supervisor_run(Job(1, "mail", headers={"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}))
    next(steps)
    with plugin.trace.get_tracer("jobs").start_as_current_span("inside"):
        pass
    with pytest.raises(StopIteration) as ended:
        steps.send("the result")
    assert ended.value.value == "the result"
    inside, attempt = exported.get_finished_spans()
    assert inside.parent.span_id == attempt.context.span_id
    assert not plugin.trace.get_current_span().get_span_context().is_valid
