"""A collector of OpenTelemetry: it takes spans by OTLP over HTTP, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.system.command import wait_for

KINDS = {4: "producer", 5: "consumer", 1: "internal"}


class Span(NamedTuple):
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    links: list[str]
    attributes: dict[str, Any]
    is_error: bool
    events: list[dict[str, Any]]
    seconds: float
    service: str


class Collector:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                collector.spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01])
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def wait(self, *names: str) -> list[Span]:
        """Wait until there is a span of each name, as often as it is given, and return them in this order."""

        def found() -> list[Span]:
            kept = {name: iter(self.named(name)) for name in names}
            spans = [next(kept[name], None) for name in names]
            assert None not in spans, ([span.name for span in self.spans], names)
            return spans  # type: ignore[return-value]

        return wait_for(found)


def _spans(request: Any) -> Iterator[Span]:
    for resource in request.resource_spans:
        service = _attributes(resource.resource.attributes).get("service.name", "")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    span.name, KINDS.get(span.kind, str(span.kind)), span.trace_id.hex(), span.span_id.hex(),
                    span.parent_span_id.hex(), [link.span_id.hex() for link in span.links], _attributes(span.attributes),
                    span.status.code == 2, [{"name": each.name, **_attributes(each.attributes)} for each in span.events],
                    (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9, service,
                )  # fmt: skip


def _attributes(found: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in found}


Start = Callable[[], Collector]
