"""The buttons: forms that work without a script, and answer with JSON to the script of the pages."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple
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

Command = Callable[[Store, list[int], bool], OperatorResult]

COMMANDS: dict[str, tuple[Command, str]] = {
    "retry": (lambda store, ids, force: store.retry(ids, force), "runs again"),
    "cancel": (lambda store, ids, force: store.cancel(ids), "is cancelled"),
    "delete": (lambda store, ids, force: store.delete(ids, force), "is deleted"),
}

AT_ONCE = 1000
"""Dead letters that are redriven while no other answer can read the store."""
REDRIVE_SECONDS = 20.0
"""For so long one request redrives more and more of them."""


class Redriven(NamedTuple):
    refused: int
    first_refusal: str
    is_complete: bool


class Actions:
    def __init__(
        self, view: View, live: Live, clock: Callable[[], float] = time.monotonic, at_once: int = AT_ONCE
    ) -> None:
        self._view, self._live, self._clock, self._at_once = view, live, clock, at_once

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
        request.scope["ids"] = changed = array("q")  # eight bytes each, since there may be many
        found = await self._redriven(ids, bool(form.get("force")), changed)
        message = f"{counted(len(changed), 'dead letter')} redriven"
        if found.refused:
            message += f"; {found.refused} refused, the first is {found.first_refusal}"
        if not found.is_complete:
            message += "; there are more: redrive all once more"
        if ids is not None and not changed:
            raise Conflict(message)
        return self._done(request, message, "/dead-letters")

    async def _redriven(self, ids: list[int] | None, force: bool, changed: array[int]) -> Redriven:
        """Redrive these, or all, some at a time, the newest first. Add to `changed` what is done, also if an error follows."""
        before: str | None = None
        refused, first_refusal, until = 0, "", self._clock() + REDRIVE_SECONDS

        def some(store: Store) -> tuple[OperatorResult, str | None]:
            if ids is not None:
                return store.redrive(ids, force), None
            found = store.find_jobs(JobFilter(dead_letter="any"), before=before, limit=self._at_once)
            return store.redrive(sorted(found.ids), force), found.next

        while True:
            result, before = await self._view.read(some)
            changed.extend(result.changed)
            if result.refused and not refused:
                id, reason = next(iter(result.refused.items()))
                first_refusal = f"job {id}: {reason}"
            refused += len(result.refused)
            if before is None or self._clock() > until:
                return Redriven(refused, first_refusal, before is None)

    def _done(self, request: Request, message: str, address: str, leaves: bool = False) -> Response:
        """`leaves` is whether the page that the button was on is no more."""
        self._live.refresh()
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse({"message": message, **({"location": address} if leaves else {})})
        return RedirectResponse(address, 303)


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
