"""The API: JSON of the store and of this supervisor, and the commands of an operator."""

from __future__ import annotations

from functools import cache

import orjson
from starlette.responses import Response
from starlette.routing import Route

from supervisor.http.commands import Commands
from supervisor.http.errors import BadRequest, Conflict, NotFound
from supervisor.http.openapi import description
from supervisor.http.operations import Json, Operation, Values, routes_of
from supervisor.http.reads import Reads
from supervisor.http.view import View

__all__ = ["BadRequest", "Conflict", "NotFound", "operations", "routes"]


def operations(view: View) -> list[Operation]:
    """Return the table of all operations, with the one that describes them."""

    @cache
    def described() -> bytes:
        return orjson.dumps(description(table))

    async def answer(_: Values) -> Response:
        return Json(described())

    summary = "This description."
    openapi = Operation("GET", "/api/openapi.json", summary, answer, {"type": "object"})
    table = [*Reads(view).operations(), *Commands(view).operations(), openapi]
    return table


def routes(view: View) -> list[Route]:
    return routes_of(operations(view))
