"""The routes of the pages, their streams, and their answers to errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from supervisor.config.settings import HttpSettings
from supervisor.errors import StoreError, Unsupported
from supervisor.http.errors import NotFound
from supervisor.http.pages import static_files
from supervisor.http.pages.actions import Actions
from supervisor.http.pages.job_story import part_of
from supervisor.http.pages.live import PATH, Live, Update
from supervisor.http.pages.rendering import environment
from supervisor.http.pages.screens import Screen, Seen, job_id, screen
from supervisor.http.view import View
from supervisor.stores.protocol import Limited, Store

_logger = logging.getLogger("supervisor")
MAX_FAILED = 20
TITLES = {400: "This address is not understood", 404: "Not found", 409: "Not possible", 503: "The store is unavailable"}
ADVICE = {
    404: "A job is deleted by a command, or once its retention has passed; with Kafka, as soon as it has succeeded.",
    503: "This page comes back by itself once the store answers.",
}


class Pages:
    def __init__(self, view: View, http: HttpSettings) -> None:
        self._view = view
        self._templates = environment(read_only=lambda: http.read_only)
        self._failed: set[str] = set()  # pages whose failure was logged
        self.live = Live(self._updates)

    def routes(self) -> list[BaseRoute]:
        actions = Actions(self._view, self.live)
        return [
            *(Route(path, self._page) for path in ("/", "/queues", "/dead-letters", "/jobs", "/jobs/{id}")),
            Route("/jobs/{id}/{part}.txt", self._text),
            *actions.routes(),
            Route(PATH, self.live),
            *static_files.routes(),
        ]

    def error(self, request: Request, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
        """Return a page for browsers, and JSON for programs."""
        if request.url.path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"error": message}, status, headers)
        facts = {
            "status_code": status, "title": TITLES.get(status, "This did not work"), "message": message,
            "advice": ADVICE.get(status, ""), "problems": self._view.problems() if status == 503 else [],
            "state": self._view.state(), "may_log_out": request.scope["session"],
        }  # fmt: skip
        return HTMLResponse(self._templates.get_template("error.html").render(facts), status, headers)

    async def _page(self, request: Request) -> Response:
        found = screen(request.url.path, request.query_params)
        if found is None:
            raise HTTPException(404)
        seen = self._seen()

        def read(store: Store) -> bytes:
            facts = {**self._facts(found, seen(store)), "may_log_out": request.scope["session"]}
            return self._templates.get_template(found.template).render(facts).encode(errors="backslashreplace")

        return HTMLResponse(await self._view.read(read))

    async def _text(self, request: Request) -> Response:
        id, part = job_id(request.path_params["id"]), request.path_params["part"]

        def read(store: Store) -> bytes:
            job = store.get(id)
            found = None if job is None else part_of(job, part)
            if found is None:
                raise NotFound(f"no job {id}" if job is None else f"job {id} has no {part[:50]!r}")
            return found.encode(errors="backslashreplace")

        text = await self._view.read(read)
        return PlainTextResponse(text, headers={"Content-Disposition": f'attachment; filename="job-{id}-{part}.txt"'})

    async def _updates(self, screens: Sequence[Screen]) -> Mapping[str, Update]:
        seen = self._seen()

        def read(store: Store) -> Mapping[str, Update]:
            now = seen(store)
            return {each.key: self._update(each, now) for each in screens}

        return await self._view.read(read)

    def _seen(self) -> Callable[[Store], Seen]:
        settings, problems = self._view.settings(), self._view.problems_of_store()
        return lambda store: Seen(store, settings, self._view.history, self._view.failures, problems)

    # on the thread that reads the store

    def _update(self, of: Screen, seen: Seen) -> Update:
        try:
            facts = self._facts(of, seen)
            parts = {id: self._templates.get_template(name).render(facts) for id, name in of.parts.items()}
        except NotFound as error:
            return Update("gone", {}, str(error))
        except Unsupported as error:
            return Update("failed", {}, str(error))
        except StoreError:
            raise
        except Exception as error:  # a page that can't be made must end neither the others nor the supervisor
            if of.key not in self._failed and len(self._failed) < MAX_FAILED:
                self._failed.add(of.key)
                _logger.exception("HTTP: the open page %s can't be kept up to date", of.key[:200])
            return Update("failed", {}, f"internal error: {type(error).__name__}")
        return Update("parts", parts)

    def _facts(self, of: Screen, seen: Seen) -> dict[str, Any]:
        facts = of.facts(seen)
        limits = seen.store.limits if isinstance(seen.store, Limited) else {}
        return {
            "now": seen.now, "state": self._view.state(), "page_key": of.key, "is_live": bool(of.parts), "limits": limits,
            **facts,
        }  # fmt: skip
