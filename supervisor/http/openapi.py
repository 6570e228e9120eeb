"""The OpenAPI description of the API, written from the table of its operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from supervisor import __version__
from supervisor.http.operations import Operation
from supervisor.http.schemas import COMPONENTS, ref
from supervisor.http.values import Form, Value

ERRORS = {
    400: "A parameter or a field is wrong; the error names it.",
    401: "There is no token, or a wrong one.",
    403: "The server is read only, or the request comes from a page of another site.",
    404: "There is no such job.",
    409: "The state of the job or of the supervisor does not allow it, or the store can't do it at all.",
    408: "The body took too long.",
    413: "The body is too large.",
    421: "The host is not this server.",
    429: "There were too many requests.",
    431: "The headers are too large.",
    503: "The store is unavailable or has not answered in time, or the supervisor has not started yet.",
}
OF_ANY = (400, 401, 403, 408, 409, 413, 421, 429, 431, 503)


def description(operations: Iterable[Operation]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "supervisor", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(it: Operation) -> dict[str, Any]:
    errors = {*it.errors, *OF_ANY}
    described: dict[str, Any] = {
        "summary": it.summary,
        "operationId": f"{it.method.lower()}{it.path.translate(str.maketrans('/{}', '_..'))}".replace(".", ""),
        "responses": {
            str(it.status): {"description": "The answer.", "content": _json(it.answer)},
            **{str(n): {"description": ERRORS[n], "content": _json(ref("Error"))} for n in sorted(errors)},
        },
    }
    parameters = [*(_parameter(each, "path") for each in it.in_path), *(_parameter(each, "query") for each in it.query)]
    if parameters:
        described["parameters"] = parameters
    forms = [_form(form) for form in it.forms if form.fields]
    if forms:
        schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
        described["requestBody"] = {"required": all(form.required for form in it.forms), "content": _json(schema)}
    return described


def _form(form: Form) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {it.name: _schema(it) for it in form.fields},
        "required": [form.required] if form.required else [],
        "additionalProperties": False,
    }


def _parameter(value: Value, place: str) -> dict[str, Any]:
    schema = {key: it for key, it in _schema(value).items() if key != "description"}
    return {
        "name": value.name, "in": place, "required": place == "path", "description": value.meaning, "schema": schema,
    }  # fmt: skip


def _schema(value: Value) -> dict[str, Any]:
    default = {} if value.default is None else {"default": value.default}
    return {**value.schema, **default, "description": value.meaning}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
