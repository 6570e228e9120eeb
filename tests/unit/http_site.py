"""The application of the HTTP server over a store, without a socket and a supervisor. Each answer is held against its description."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import jsonschema_rs

from supervisor.config.settings import HttpSettings, Settings
from supervisor.config.types import Address
from supervisor.handlers import HandlerInfo
from supervisor.http import api
from supervisor.http.app import application
from supervisor.http.openapi import description
from supervisor.http.rates import Rates
from supervisor.http.view import View
from supervisor.plugins.reports import SourceReport
from supervisor.stores.protocol import Store

REPORTS = [
    SourceReport(
        "plugins/mail.py", (HandlerInfo("mail", {"timeout": "5s"}, "plugins/mail.py", 3, {"type": "object"}),)
    ),
    SourceReport("plugins/broken.py", error="the password is hunter2!", line=1, traceback="hunter2!"),
]


class Answer(NamedTuple):
    status: int
    body: Any
    headers: Mapping[str, str]


class Direct:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self, call: Callable[[Store], Any]) -> Any:
        return call(self._store)

    def close(self) -> None: ...


class Wheel:
    """The steering of a supervisor that is not there."""

    def __init__(self) -> None:
        self.workers = 2
        self.refusal: str | None = None
        self.reasons: list[str] = []

    def keeps_size(self) -> str | None:
        return self.refusal

    def resize(self, by: int) -> str:
        self.workers += by
        return f"{self.workers} workers"

    def drain(self, reason: str) -> None:
        self.reasons.append(reason)


class Site:
    def __init__(self, store: Store) -> None:
        self.own: dict[str, Any] = {"owner": "other", "workers": []}
        self.wheel = Wheel()
        settings = Settings(secrets=frozenset({"hunter2!"}))
        engine: Any = SimpleNamespace(
            config=SimpleNamespace(reports=REPORTS), status=lambda owner, state: self.own,
            self_report=SimpleNamespace(about=lambda: {"problems": []}),
        )  # fmt: skip
        self.view = View(
            lambda: "running",
            lambda: settings,
            dict,
            engine=engine,
            reader=Direct(store),
            owner="one",
            steering=self.wheel,
        )  # type: ignore[arg-type]
        self.app = application(self.view, HttpSettings(listen=Address("127.0.0.1", 80)), Rates(requests_at_once=10**6))
        self.description = description(api.operations(self.view))
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.close()

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Answer:
        answer = self._runner.run(self._ask(path, method, body))
        if method == "HEAD":
            return Answer(answer.status_code, None, answer.headers)
        found = json.loads(answer.content)
        check(self.description, method, path, answer.status_code, found)
        return Answer(answer.status_code, found, answer.headers)

    def post(self, path: str, body: Any = None) -> Any:
        """Return what the answer has, which must not be a refusal."""
        answer = self.ask(path, "POST", body)
        assert answer.status < 300, answer.body
        return answer.body

    def press(self, path: str, form: str) -> str:
        """Return what a button of a page answers to its script."""
        answer = self._runner.run(self._ask(path, "POST", form.encode(), accept="application/json"))
        assert answer.status_code == 200, answer.text
        message: str = json.loads(answer.content)["message"]
        return message

    async def _ask(self, path: str, method: str, body: Any, accept: str = "*/*") -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            return await client.request(method, path, content=content, headers={"Accept": accept})


def check(description: Any, method: str, path: str, status: int, body: Any) -> None:
    """Fail unless the answer is one of those that the description has."""
    operation = _operation(description["paths"], path.partition("?")[0], method.lower())
    if operation is None:
        assert status in (404, 405)
        return
    schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    jsonschema_rs.validate({**schema, "components": description["components"]}, body, validate_formats=True)


def _operation(paths: Any, path: str, method: str) -> Any:
    if path in paths:
        return paths[path].get(method)
    parts = path.split("/")
    for each, operations in paths.items():
        wanted = each.split("/")
        if len(parts) == len(wanted) and all(a == b or b[:1] == "{" for a, b in zip(parts, wanted, strict=True)):
            return operations.get(method)
    return None
