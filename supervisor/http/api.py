"""The JSON of the store, and the commands of an operator."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from supervisor.http.view import View
from supervisor.jobs import JobState
from supervisor.stores.operator_commands import NO_SUCH_JOB
from supervisor.stores.problems import with_problems
from supervisor.stores.protocol import Store
from supervisor.stores.records import OperatorResult
from supervisor.stores.waiting import with_reasons

MAX_PAGE = 100
"""Jobs of one answer."""
STATES = [state.value for state in JobState]


class BadRequest(Exception):
    """A request that no answer exists for; the text names the parameter and what was expected."""


class NotFound(Exception):
    """Something that was asked for does not exist."""


class Conflict(Exception):
    """A command that the state of the job does not allow."""


class Json(Response):
    """`content` is JSON already: it was encoded on the thread that has read it."""

    media_type = "application/json"


def routes(view: View) -> list[Route]:
    api = Api(view)
    return [
        Route("/api/status", api.status),
        Route("/api/queues", api.queues),
        Route("/api/queues/{name}/pause", api.pause, methods=["POST"]),
        Route("/api/queues/{name}/resume", api.resume, methods=["POST"]),
        Route("/api/jobs", api.jobs),
        Route("/api/jobs/{id}", api.job),
        Route("/api/jobs/{id}", api.delete, methods=["DELETE"]),
        Route("/api/jobs/{id}/retry", api.retry, methods=["POST"]),
        Route("/api/jobs/{id}/cancel", api.cancel, methods=["POST"]),
        Route("/api/dlq/redrive", api.redrive, methods=["POST"]),
    ]


class Api:
    def __init__(self, view: View) -> None:
        self._view = view

    async def status(self, request: Request) -> Response:
        sinks = self._view.settings().dlq.names
        return await self._answer(lambda store: with_problems(store.stats(), sinks))

    async def queues(self, request: Request) -> Response:
        return await self._answer(lambda store: store.stats()["queues"])

    async def jobs(self, request: Request) -> Response:
        query = request.query_params
        limit = _number(query.get("limit", str(MAX_PAGE)), "limit", MAX_PAGE)
        state = _state(query.get("state"))
        queue, handler = query.get("queue"), query.get("handler")

        def read(store: Store) -> Any:
            found = store.list_jobs(state=state, queue=queue, handler=handler, limit=limit, brief=True)
            return {"jobs": [*with_reasons(store, found)]}

        return await self._answer(read)

    async def job(self, request: Request) -> Response:
        id = _id(request)

        def read(store: Store) -> bytes | None:
            job = store.get(id)
            return None if job is None else orjson.dumps(next(with_reasons(store, [job])))

        found = await self._view.read(read)
        if found is None:
            raise NotFound(f"no job {id}")
        return Json(found)

    async def retry(self, request: Request) -> Response:
        return await self._change(request, lambda store, ids, force: store.retry(ids, force))

    async def cancel(self, request: Request) -> Response:
        return await self._change(request, lambda store, ids, force: store.cancel(ids))

    async def delete(self, request: Request) -> Response:
        return await self._change(request, lambda store, ids, force: store.delete(ids, force))

    async def redrive(self, request: Request) -> Response:
        body = await _body(request)
        ids, force = body.get("ids"), _force(body)
        if ids is not None and not (isinstance(ids, list) and all(type(id) is int for id in ids)):
            raise BadRequest("ids: expected a list of ids of jobs, or nothing for all dead letters")
        return await self._answer(lambda store: _result(store.redrive(ids, force)))

    async def pause(self, request: Request) -> Response:
        return await self._pause(request, True)

    async def resume(self, request: Request) -> Response:
        return await self._pause(request, False)

    async def _pause(self, request: Request, paused: bool) -> Response:
        queue = request.path_params["name"]

        def change(store: Store) -> Any:
            store.pause(queue, paused)
            return {"queue": queue, "paused": paused}

        return await self._answer(change)

    async def _change(self, request: Request, command: Callable[[Store, list[int], bool], OperatorResult]) -> Response:
        id, force = _id(request), _force(await _body(request))

        result = await self._view.read(lambda store: command(store, [id], force))
        if id in result.refused:
            refusal = result.refused[id]
            raise (NotFound if refusal == NO_SUCH_JOB else Conflict)(f"job {id}: {refusal}")
        return Json(orjson.dumps({"id": id}))

    async def _answer(self, read: Callable[[Store], Any]) -> Response:
        return Json(await self._view.read(lambda store: orjson.dumps(read(store))))


def _result(result: OperatorResult) -> dict[str, Any]:
    return {
        "changed": len(result.changed),
        "refused": [{"id": id, "reason": reason} for id, reason in islice(result.refused.items(), MAX_PAGE)],
        "refused_count": len(result.refused),
    }


def _id(request: Request) -> int:
    return _number(request.path_params["id"], "id", 2**63 - 1)


def _number(text: str, name: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or not 1 <= int(text) <= most:
        raise BadRequest(f"{name}: expected a whole number from 1 to {most}, got {text[:50]!r}")
    return int(text)


def _state(text: str | None) -> JobState | None:
    if text is not None and text not in STATES:
        raise BadRequest(f"state: expected one of {', '.join(STATES)}, got {text[:50]!r}")
    return None if text is None else JobState(text)


async def _body(request: Request) -> dict[str, Any]:
    raw = await request.body()
    try:
        body = orjson.loads(raw) if raw.strip() else {}
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"body: expected JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("body: expected an object, or nothing")
    return body


def _force(body: dict[str, Any]) -> bool:
    force = body.get("force", False)
    if not isinstance(force, bool):
        raise BadRequest("force: expected true or false")
    return force
