"""The buttons: forms that work without a script, and answer with JSON to the script of the pages."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
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
from supervisor.stores.search import JobFilter
from supervisor.text.names import NAME, is_name
from supervisor.text.printable import printable
from supervisor.text.units import counted

DEAD_LETTERS = JobFilter(dead_letter="any")
PART = 5000  # dead letters that are redriven by one call of the store
SECONDS = 15.0  # after which no other part is begun: the browser waits for the answer

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
        await self._view.read(lambda store: _pause(store, queue, name == "pause"))
        return self._done(request, f"Queue {queue} is {'paused' if name == 'pause' else 'resumed'}", "/queues")

    async def _redrive(self, request: Request) -> Response:
        form = await _form(request)
        ids = None if form.get("all") else [job_id(text) for text in form.get("id", [])]
        if ids is not None and not ids:
            raise BadRequest("no dead letter is selected")
        force = bool(form.get("force"))
        if ids is None:
            result, is_rest = await self._redrive_all(force)
        else:
            result, is_rest = await self._view.read(lambda store: store.redrive(ids, force)), False
        request.scope["ids"] = [*result.changed]
        message = f"{counted(len(result.changed), 'dead letter')} redriven"
        if result.refused:
            id, reason = next(iter(result.refused.items()))
            message += f"; {len(result.refused)} refused, the first is job {id}: {reason}"
        if is_rest:
            message += "; older ones are left: the command for all of them is supervisor dlq redrive --all"
        if ids is not None and not result.changed:
            raise Conflict(message)
        return self._done(request, message, "/dead-letters")

    async def _redrive_all(self, force: bool) -> tuple[OperatorResult, bool]:
        """Redrive a part at a time, so that others can read in between, for a limited time. Return whether there are more."""
        found, before, began = OperatorResult({}, {}), None, time.monotonic()
        while True:
            result, before = await self._view.read(partial(_redrive_part, force=force, before=before))
            found.changed.update(result.changed)
            found.refused.update(result.refused)
            if before is None or time.monotonic() - began > SECONDS:
                return found, before is not None

    def _done(self, request: Request, message: str, address: str, leaves: bool = False) -> Response:
        """`leaves` is whether the page that the button was on is no more."""
        self._live.refresh()
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse({"message": message, **({"location": address} if leaves else {})})
        return RedirectResponse(address, 303)


def _redrive_part(store: Store, force: bool, before: str | None) -> tuple[OperatorResult, str | None]:
    found = store.find_jobs(DEAD_LETTERS, before=before, limit=PART)
    return store.redrive(sorted(found.ids), force), found.next


def _pause(store: Store, queue: str, paused: bool) -> None:
    """Pause or resume a queue: one that has jobs, whatever its name is, or one that can have some."""
    if not is_name(queue) and queue not in [row["queue"] for row in store.stats()["queues"]]:
        raise BadRequest(f"queue: expected {NAME}, got {printable(queue[:50])!r}")
    store.pause(queue, paused)


async def _form(request: Request) -> dict[str, Any]:
    body = (await request.body()).decode(errors="replace")
    try:
        return parse_qs(body, max_num_fields=1000)
    except ValueError:
        raise BadRequest("expected at most 1000 fields") from None
