"""The buttons: forms that work without a script, and answer with JSON to the script of the pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from supervisor.http.errors import BadRequest, Conflict, NotFound
from supervisor.http.pages.live import Live
from supervisor.http.pages.screens import job_id
from supervisor.http.view import View
from supervisor.stores.operator_commands import NO_SUCH_JOB
from supervisor.stores.protocol import Store
from supervisor.stores.records import OperatorResult
from supervisor.text.units import counted

Command = Callable[[Store, list[int], bool], OperatorResult]

COMMANDS: dict[str, tuple[Command, str]] = {
    "retry": (lambda store, ids, force: store.retry(ids, force), "runs again"),
    "cancel": (lambda store, ids, force: store.cancel(ids), "is cancelled"),
    "delete": (lambda store, ids, force: store.delete(ids, force), "is deleted"),
}


class Actions:
    def __init__(self, view: View, live: Live) -> None:
        self._view, self._live = view, live

    def routes(self) -> list[Route]:
        return [
            Route("/jobs/{id}/{command}", self._job, methods=["POST"]),
            Route("/queues/{command}", self._queue, methods=["POST"]),
            Route("/dead-letters/redrive", self._redrive, methods=["POST"]),
        ]

    async def _job(self, request: Request) -> Response:
        id, name = job_id(request.path_params["id"]), request.path_params["command"]
        if name not in COMMANDS:
            raise NotFound(f"no command {name[:50]!r}")
        command, effect = COMMANDS[name]
        force = bool((await _form(request)).get("force"))
        result = await self._view.read(lambda store: command(store, [id], force))
        request.scope["ids"] = [*result.changed]
        if id in result.refused:
            refusal = result.refused[id]
            raise (NotFound if refusal == NO_SUCH_JOB else Conflict)(f"job {id}: {refusal}")
        return self._done(
            request, f"Job {id} {effect}", "/jobs" if name == "delete" else f"/jobs/{id}", name == "delete"
        )

    async def _queue(self, request: Request) -> Response:
        name, queue = request.path_params["command"], request.query_params.get("queue")
        if name not in ("pause", "resume") or not queue:
            raise NotFound("expected /queues/pause?queue=NAME or /queues/resume?queue=NAME")
        await self._view.read(lambda store: store.pause(queue, name == "pause"))
        return self._done(request, f"Queue {queue} is {'paused' if name == 'pause' else 'resumed'}", "/queues")

    async def _redrive(self, request: Request) -> Response:
        form = await _form(request)
        ids = None if form.get("all") else [job_id(text) for text in form.get("id", [])]
        if ids is not None and not ids:
            raise BadRequest("no dead letter is selected")
        force = bool(form.get("force"))
        result = await self._view.read(lambda store: store.redrive(ids, force))
        request.scope["ids"] = [*result.changed]
        message = f"{counted(len(result.changed), 'dead letter')} redriven"
        if result.refused:
            id, reason = next(iter(result.refused.items()))
            message += f"; {len(result.refused)} refused, the first is job {id}: {reason}"
        if ids is not None and not result.changed:
            raise Conflict(message)
        return self._done(request, message, "/dead-letters")

    def _done(self, request: Request, message: str, address: str, leaves: bool = False) -> Response:
        """`leaves` is whether the page that the button was on is no more."""
        self._live.refresh()
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse({"message": message, **({"location": address} if leaves else {})})
        return RedirectResponse(address, 303)


async def _form(request: Request) -> dict[str, Any]:
    body = (await request.body()).decode(errors="replace")
    try:
        return parse_qs(body, max_num_fields=1000)
    except ValueError:
        raise BadRequest("expected at most 1000 fields") from None
