"""The styles, the script and the icon: read once, and kept in memory."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TYPES = {"app.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"}


class _File(NamedTuple):
    data: bytes
    version: str


def _read() -> Mapping[str, _File]:
    folder = files("supervisor.http.pages") / "static"
    found = {name: (folder / name).read_bytes() for name in TYPES}
    return MappingProxyType({name: _File(data, sha256(data).hexdigest()[:12]) for name, data in found.items()})


_FILES = _read()


def address_of(name: str) -> str:
    """Return the address of a file; it is another one when the file has changed, so that browsers may keep it."""
    return f"/static/{name}?v={_FILES[name].version}"


async def _answer(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:
        raise HTTPException(404)
    file = _FILES[name]
    age = 31_536_000 if request.query_params.get("v") == file.version else 0
    return Response(file.data, media_type=TYPES[name], headers={"Cache-Control": f"private, max-age={age}"})


def routes() -> list[Route]:
    return [Route("/static/{name}", _answer)]
