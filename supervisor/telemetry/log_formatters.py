"""How a log record becomes a line. Fields that programs want come in as `extra={"fields": {...}}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from supervisor.text.printable import STEERING, json_line, printable
from supervisor.text.redaction import NO_SECRETS, Mask

# A job's name or message must not forge a line, nor steer the terminal it is read on.
_ESCAPES = {
    **{code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in (*range(32), *STEERING)},
    ord("\t"): "\t",
    ord("\n"): "\n    ",
    ord("\r"): "\\r",
}


class _Format(logging.Formatter):
    def __init__(self, mask: Mask = NO_SECRETS) -> None:
        super().__init__()
        self._mask = mask


class TextFormat(_Format):
    """`2026-11-28T08:00:00.000Z INFO message`; further lines of a record are indented by four spaces."""

    def format(self, record: logging.LogRecord) -> str:
        source = "" if _ours(record) else f"{record.name}: "
        text = f"{source}{record.getMessage()}"
        if trace := _traceback(self, record):
            text += "\n" + trace.rstrip("\n")
        return f"{_at(record)} {record.levelname} {printable(self._mask(text)).translate(_ESCAPES)}"


class JsonFormat(_Format):
    """One object per line: `at`, `level`, `logger`, `message`, the fields, and `traceback` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            **_fields(record),
            "at": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := _traceback(self, record):
            line["traceback"] = trace
        return _dump({key: self._mask(value) if isinstance(value, str) else value for key, value in line.items()})


FORMATS: Mapping[str, type[_Format]] = {"text": TextFormat, "json": JsonFormat}


def _ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "supervisor"


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info:
        return formatter.formatException(record.exc_info)
    return str(_fields(record).get("traceback", ""))


def _dump(line: Mapping[str, Any]) -> str:
    try:
        return json_line(orjson.dumps(line, default=str))
    except TypeError:
        # A lone surrogate somewhere: rare, so only then is each text looked at.
        safe = {key: printable(value if isinstance(value, str) else repr(value)) for key, value in line.items()}
        return json_line(orjson.dumps(safe))
