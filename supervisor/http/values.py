"""The values of requests: each has a name, the JSON schema that describes it, and the function that reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from supervisor.http.errors import BadRequest
from supervisor.jobs import JobState
from supervisor.stores.search import CURSOR, MAX_TEXT, JobFilter, header_of, searched_text
from supervisor.text.names import MAX_NAME, NAME, did_you_mean_or_all, is_name
from supervisor.text.printable import printable
from supervisor.text.units import parse_moment

MAX_PAGE = 100
"""Jobs of one answer."""
MAX_CHANGED = 10_000
"""Jobs that one command changes."""
MAX_ID = 2**63 - 1
STATES = [state.value for state in JobState]
DEAD_LETTERS = ["pending", "delivered", "any"]

Schema = Mapping[str, Any]


class Value(NamedTuple):
    """`read` gets the text of a parameter, or the JSON of a field of the body; it raises ValueError with what was expected."""

    name: str
    schema: Schema
    read: Callable[[Any], Any]
    meaning: str
    default: Any = None


# --- what a value is read with


def _one_of(names: list[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(f"expected one of {', '.join(names)}")
        return str(value)

    return read


def _state(value: Any) -> JobState:
    return JobState(_one_of(STATES)(value))


def _name(value: Any) -> str:
    if not is_name(value):
        raise ValueError(f"expected {NAME}")
    return str(value)


def _time(value: Any) -> int:
    """Return microseconds since the epoch."""
    return parse_moment(value, time.time())


def _is_whole(value: Any, most: int) -> bool:
    """Return whether it is a whole number in JSON, which 7.0 is too."""
    whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    return whole and 1 <= value <= most


def _whole(most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not _is_whole(value, most):
            raise ValueError(f"expected a whole number from 1 to {most}")
        return int(value)

    return read


def _digits(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        return _whole(most)(int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 else None)

    return read


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(_is_whole(id, MAX_ID) for id in value):
        raise ValueError("expected a list of ids of jobs")
    return [*map(int, value)]


def _cursor(value: Any) -> str:
    if not isinstance(value, str) or CURSOR.fullmatch(value) is None:
        raise ValueError("expected the `next` of the answer before")
    return value


def _header(value: Any) -> tuple[str, str]:
    return header_of(searched_text(value))


def _where(value: Any) -> JobFilter:
    if not isinstance(value, dict) or not value:
        raise ValueError(f"expected an object with some of {', '.join(it.name for it in FILTER)}")
    return JobFilter(**read_values(FILTER, value, "where."))


# --- the values


def _whole_schema(most: int) -> Schema:
    return {"type": "integer", "minimum": 1, "maximum": most}


_NAME_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
_CURSOR_SCHEMA = {"type": "string", "pattern": CURSOR.pattern}
_TIME_SCHEMA = {
    "type": "string",
    "anyOf": [{"format": "date-time"}, {"pattern": "^[1-9][0-9]{0,3}[smhd]$"}],
    "examples": ["2026-11-30T10:00:00Z", "2h"],
}

STATE = Value("state", {"type": "string", "enum": STATES}, _state, "Only jobs in this state.")
QUEUE = Value("queue", _NAME_SCHEMA, _name, "Only jobs of this queue.")
HANDLER = Value("handler", _NAME_SCHEMA, _name, "Only jobs for this handler.")
SINCE = Value("since", _TIME_SCHEMA, _time, "Only jobs that were created then or later.")
UNTIL = Value("until", _TIME_SCHEMA, _time, "Only jobs that were created before.")
TEXT = Value(
    "text", {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}, searched_text,
    "Only jobs that have this text in the payload, the headers or an error; A to Z match in either case.",
)  # fmt: skip
ERROR = Value(
    "error", {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}, searched_text,
    "Only jobs that have this text in the type, the message or the cause of their last error; A to Z match in either case.",
)  # fmt: skip
TAG = Value("tag", _NAME_SCHEMA, _name, "Only jobs with this tag.")
HEADER = Value(
    "header", {"type": "string", "minLength": 2, "maxLength": MAX_TEXT, "pattern": "^[^=]+="}, _header,
    "Only jobs with this value of a header, as NAME=VALUE; a value that is no text as in JSON.",
)  # fmt: skip
DEAD_LETTER = Value(
    "dead_letter", {"type": "string", "enum": DEAD_LETTERS}, _one_of(DEAD_LETTERS),
    "Only jobs with a dead letter in this state; any is either.",
)  # fmt: skip
DEAD_LETTER_STATE = Value(
    "state", {"type": "string", "enum": DEAD_LETTERS}, _one_of(DEAD_LETTERS), "Only dead letters in this state.", "any"
)
SINK = Value("sink", _NAME_SCHEMA, _name, "Only pending dead letters that wait for this sink.")
FILTER = (STATE, QUEUE, HANDLER, SINCE, UNTIL, TEXT, ERROR, TAG, HEADER, DEAD_LETTER)
BEFORE = Value("before", _CURSOR_SCHEMA, _cursor, "The `next` of the answer before: what comes behind it.")
LIMIT = Value("limit", _whole_schema(MAX_PAGE), _digits(MAX_PAGE), "The most jobs of the answer.", MAX_PAGE)
GROUPS = Value("limit", _whole_schema(MAX_PAGE), _digits(MAX_PAGE), "The most groups of the answer.", MAX_PAGE)
ID = Value("id", _whole_schema(MAX_ID), _digits(MAX_ID), "The id of a job.")
NAME_OF_QUEUE = Value("name", _NAME_SCHEMA, _name, "The name of a queue.")

FORCE = Value("force", {"type": "boolean"}, _flag, "As --force on the command line.", False)
IDS = Value("ids", {"type": "array", "items": _whole_schema(MAX_ID)}, _ids, "The jobs.")
WHERE = Value(
    "where",
    {
        "type": "object", "minProperties": 1, "additionalProperties": False,
        "properties": {it.name: {**it.schema, "description": it.meaning} for it in FILTER},
    },
    _where, "All jobs that match, instead of `ids`.",
)  # fmt: skip
MOST = Value(
    "limit", _whole_schema(MAX_CHANGED), _whole(MAX_CHANGED),
    "The most jobs of `where` that are looked at; `next` goes on from there.", MAX_CHANGED,
)  # fmt: skip
DRY_RUN = Value("dry_run", {"type": "boolean"}, _flag, "Only count the jobs, and change none.", False)


class Form(NamedTuple):
    """One of the forms that a body may have, and the name of the field by which it is known, if there is one."""

    fields: tuple[Value, ...]
    required: str | None = None


NOTHING = Form(())
ONE_JOB = Form((FORCE,))
BY_IDS = Form((IDS, FORCE, DRY_RUN), IDS.name)
BY_FILTER = Form((WHERE, BEFORE, MOST, FORCE, DRY_RUN), WHERE.name)
ALL = Form((BEFORE, MOST, FORCE, DRY_RUN))


# --- reading


def read_values(values: Iterable[Value], given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return all values by name. Raises BadRequest, which names the value, for one that is wrong or unknown."""
    known = {it.name: it for it in values}
    for name in given:
        if name not in known:
            hint = did_you_mean_or_all(name[:MAX_NAME], known)
            raise BadRequest(f"{prefix}{printable(name[:50])}: there is no such parameter here{hint}")
    return {name: _read(it, given[name], prefix) if name in given else it.default for name, it in known.items()}


def _read(value: Value, given: Any, prefix: str) -> Any:
    try:
        return value.read(given)
    except ValueError as error:
        raise BadRequest(f"{prefix}{value.name}: {error}, got {printable(repr(given)[:50])}") from None


def parameters_of(query: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the parameters of a query by name. Raises BadRequest if one is given twice."""
    found: dict[str, str] = {}
    for name, value in query:
        if name in found:
            raise BadRequest(f"{printable(name[:50])}: expected it once")
        found[name] = value
    return found


def read_body(forms: Sequence[Form], body: bytes) -> dict[str, Any]:
    fields = fields_of(body)
    form = next((it for it in forms if it.required is None or it.required in fields), None)
    if form is None:
        raise BadRequest(f"body: expected one of {', '.join(str(it.required) for it in forms)}")
    return read_values(form.fields, fields)


def fields_of(body: bytes) -> dict[str, Any]:
    """Return the fields of a body, which may be empty."""
    try:
        fields = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"body: expected JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRequest("body: expected an object, or nothing")
    return fields
