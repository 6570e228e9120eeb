"""A Sentry that takes envelopes, and keeps the events in them."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SentryServer:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        sentry = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                sentry.take(body)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *arguments: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.dsn = f"http://key@127.0.0.1:{self._server.server_port}/1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01])
        self._thread.start()

    def take(self, body: bytes) -> None:
        _, _, rest = body.partition(b"\n")
        while rest.strip():
            header, _, rest = rest.partition(b"\n")
            described = json.loads(header)
            length = described.get("length", len(rest))
            if described["type"] == "event":
                self.events.append(json.loads(rest[:length]))
            rest = rest[length:].lstrip(b"\n")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
