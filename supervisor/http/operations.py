"""The table of operations: each is served, checked and described by the same row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from supervisor.http.values import NOTHING, Form, Schema, Value, parameters_of, read_body, read_values

Values = Mapping[str, Any]
"""The values of a request by name."""


class Json(Response):
    """`content` is JSON already: it was encoded on the thread that has read it. `ids` are the jobs that were changed, for the log."""

    media_type = "application/json"

    def __init__(self, content: bytes, status_code: int = 200, ids: Collection[int] = ()) -> None:
        super().__init__(content, status_code)
        self._ids = ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["ids"] = self._ids
        await super().__call__(scope, receive, send)


@dataclass(frozen=True)
class Operation:
    """`answer` describes the JSON of the answer. `errors` are the statuses of refusals, besides those that any request may get."""

    method: str
    path: str
    summary: str
    call: Callable[[Values], Awaitable[Response]]
    answer: Schema
    in_path: tuple[Value, ...] = ()
    query: tuple[Value, ...] = ()
    forms: tuple[Form, ...] = (NOTHING,)
    errors: tuple[int, ...] = ()
    status: int = field(default=200)

    async def run(self, request: Request) -> Response:
        values = read_values(self.in_path, request.path_params)
        values |= read_values(self.query, parameters_of(request.query_params.multi_items()))
        if self.method not in ("GET", "HEAD"):
            values |= read_body(self.forms, await request.body())
        return await self.call(values)


class _AnyName(StringConvertor):
    regex = "(?s:.+)"


register_url_convertor("any_name", _AnyName())


class _Path:
    """All operations of one path."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._by_method = {it.method: it for it in operations}
        if "GET" in self._by_method:
            self._by_method["HEAD"] = self._by_method["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        operation = self._by_method.get(request.method)
        if operation is None:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(self._by_method))})
        response = await operation.run(request)
        await response(scope, receive, send)


def routes_of(operations: Iterable[Operation]) -> list[Route]:
    """Return a route for each path. Paths without parameters come first, since those with some match them too."""
    paths: dict[str, list[Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, []).append(operation)
    return [Route(_pattern(path), _Path(paths[path])) for path in sorted(paths, key=lambda path: "{" in path)]


def _pattern(path: str) -> str:
    """A name may have a slash, which is encoded in the address, and has been decoded before the routes see it."""
    return path.replace("{name}", "{name:any_name}")
