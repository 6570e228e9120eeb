import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from supervisor import AsyncClient, Client, NewJob, StoreError
from supervisor.client import tracing

OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """The tracer and the finished spans of a provider that is not global."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def spans(self, name: str) -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traced:
    traced = Traced()
    monkeypatch.setattr(trace, "get_tracer", traced.provider.get_tracer)
    monkeypatch.setattr(tracing, "sender", None)
    tracing.instrument()
    return traced


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def parent_of(headers: dict[str, str]) -> str:
    return headers["traceparent"].split("-")[2]


def test_a_job_has_the_context_of_the_span_that_has_enqueued_it(traced: Traced, url: str) -> None:
    with Client(url, create=True) as jobs, traced.tracer.start_as_current_span("request") as request:
        job = jobs.job(jobs.enqueue("mail", queue="post", headers={"team": 7}))
    assert job is not None
    (span,) = traced.spans("send post")
    assert job["headers"]["team"] == 7
    assert parent_of(job["headers"]) == trace.format_span_id(span.context.span_id)
    assert span.parent.span_id == request.get_span_context().span_id
    assert (span.kind, span.attributes["messaging.message.id"]) == (trace.SpanKind.PRODUCER, str(job["id"]))


def test_many_jobs_have_one_span_and_the_context_that_a_program_has_given_stays(traced: Traced, url: str) -> None:
    with Client(url, create=True) as jobs:
        ids = jobs.enqueue_many([("mail", 1), ("mail", 2), NewJob("ship", headers={"traceparent": OWN})])
        headers = [jobs.job(id)["headers"] for id in ids]  # type: ignore[index]
    (span,) = traced.spans("send default")
    assert span.attributes["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in span.attributes
    assert [parent_of(each) for each in headers[:2]] == [trace.format_span_id(span.context.span_id)] * 2
    assert headers[2] == {"traceparent": OWN}
    assert [trace.format_span_id(link.context.span_id) for link in span.links] == [OWN.split("-")[2]]


def test_an_enqueue_that_fails_has_the_error_in_its_span(traced: Traced, url: str) -> None:
    with pytest.raises(StoreError):
        Client(url).enqueue("mail")
    (span,) = traced.spans("send default")
    assert (span.status.is_ok, span.attributes["error.type"]) == (False, "supervisor.errors.StoreMissing")
    assert span.events[0].name == "exception"


def test_an_async_client_knows_the_span_of_its_caller(traced: Traced, url: str) -> None:
    async def main() -> list[Any]:
        async with AsyncClient(url, create=True) as jobs:
            with traced.tracer.start_as_current_span("request"):
                ids = [await jobs.enqueue("mail"), *await jobs.enqueue_many([("mail", None)])]
            return [await jobs.job(id) for id in ids]

    one, many = asyncio.run(main())
    (request,) = traced.spans("request")
    first, second = traced.spans("send default")
    assert {first.parent.span_id, second.parent.span_id} == {request.context.span_id}
    for job, span in ((one, first), (many, second)):
        assert parent_of(job["headers"]) == trace.format_span_id(span.context.span_id)


def test_a_span_that_is_not_recorded_leaves_a_job_that_can_be_enqueued(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "sender", None)
    tracing.instrument()
    with Client(url, create=True) as jobs:
        assert jobs.job(jobs.enqueue("mail"))["headers"] == {}  # type: ignore[index]
