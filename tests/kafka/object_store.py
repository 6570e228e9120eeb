"""As much of an S3 server as the broker of the tests uses, in memory, so that the data of a broker outlives its process."""

from __future__ import annotations

import itertools
import threading
import time
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "tansu"


class ObjectStore:
    """Objects by key. It serves while it is open, with a thread for each connection."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, tuple[bytes, str, float]] = {}
        """Content, ETag and time of writing. What is under `clusters/…/groups/consumers/GROUP/offsets/` is a group's commits."""
        self.tags = (f'"{number}"' for number in itertools.count())
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.store = self
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def environment(self) -> dict[str, str]:
        """Return the settings of the broker's client, for the storage engine s3://tansu/."""
        return {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "local",
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    store: ObjectStore

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a broker that is killed drops its connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        with self._store.lock:
            _content, tag, _at = self._store.objects.get(self._key, (b"", None, 0.0))
            wanted = self.headers["If-Match"]
            if (wanted and wanted != tag) or (self.headers["If-None-Match"] and tag):
                status, tag = HTTPStatus.PRECONDITION_FAILED, None
            else:
                status, tag = HTTPStatus.OK, next(self._store.tags)
                self._store.objects[self._key] = (content, tag, time.time())
        self._answer(status, tag=tag)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path.strip("/") == BUCKET:
            self._list({name: values[0] for name, values in parse_qs(url.query).items()})
            return
        content, tag, at = self._store.objects.get(self._key, (b"", None, 0.0))
        if tag is None:
            self._answer(HTTPStatus.NOT_FOUND)
        elif self.headers["If-None-Match"] == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, tag=tag, at=at)
        else:
            self._answer(HTTPStatus.OK, content, tag=tag, at=at)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        with self._store.lock:
            self._store.objects.pop(self._key, None)
        self._answer(HTTPStatus.NO_CONTENT)

    def do_POST(self) -> None:
        """Delete several objects."""
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        keys = [part.partition("</Key>")[0] for part in text.split("<Key>")[1:]]
        with self._store.lock:
            for key in keys:
                self._store.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(HTTPStatus.OK, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def log_message(self, format: str, *values: object) -> None:
        """Print nothing."""

    @property
    def _store(self) -> ObjectStore:
        return cast(_Server, self.server).store

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/").removeprefix(f"{BUCKET}/")

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter, after = (query.get(name, "") for name in ("prefix", "delimiter", "start-after"))
        with self._store.lock:
            found = [
                (key, *value) for key, value in self._store.objects.items() if key.startswith(prefix) and key > after
            ]
        folders, contents = set(), []
        for key, content, tag, at in sorted(found):
            rest = key.removeprefix(prefix)
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            written = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03}Z"
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{written}</LastModified>"
                f"<ETag>{escape(tag)}</ETag><Size>{len(content)}</Size></Contents>"
            )
        prefixes = [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)]
        body = "<ListBucketResult><IsTruncated>false</IsTruncated>" + "".join([*contents, *prefixes])
        self._answer(HTTPStatus.OK, f"{body}</ListBucketResult>".encode())

    def _answer(self, status: HTTPStatus, content: bytes = b"", *, tag: str | None = None, at: float = 0.0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if tag is not None:
            self.send_header("ETag", tag)
        if at:
            self.send_header("Last-Modified", formatdate(at, usegmt=True))
        self.end_headers()
        if self.command != "HEAD" and status != HTTPStatus.NOT_MODIFIED:
            self.wfile.write(content)
