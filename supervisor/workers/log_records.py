"""Log records on their way from a worker or a forkserver to the supervisor: within the stream of standard error, as lines of their own.

A line has at most PIPE_BUF bytes, so that the kernel writes it whole, whatever threads and programs write to the stream meanwhile.
A longer record takes several lines. Each is the token of the stream, the key and the size of the record, and a part of its JSON:

    token@key size part      the last part, or the only one
    token+key size part      another one follows
"""

from __future__ import annotations

import logging
import re
import select
from collections.abc import Iterator

import orjson

from supervisor.jobs import MAX_PROGRESS, MAX_PROGRESS_MESSAGE
from supervisor.text.printable import printable, shortened
from supervisor.workers.interface import WorkerProgress, WorkerRecord

LAST, MORE = b"@", b"+"
MAX_TEXT = 64 * 1024  # characters of a message, and of a traceback
MAX_BYTES = 1_000_000  # of the JSON: each character may take six
MAX_NAME = 200
MAX_UNFINISHED = 16  # records: of threads and programs that write at the same time
MAX_UNFINISHED_BYTES = 2 * MAX_BYTES
_PART = select.PIPE_BUF - 128  # for the token, the key, the size and the newline
_TYPES = ((int,), (str,), (str,), (str,), (str,), (int, type(None)), (str, type(None)), (int, type(None)))
_PROGRESS_TYPES = ((int,), (int,), (int,), (int, float), (int, float, type(None)), (str, type(None)))
_LEVEL_NAME = re.compile(r"[A-Za-z0-9_-]{1,20}")
_MAX_LEVEL = 1 << 31


def lines_of(record: WorkerRecord | WorkerProgress, token: bytes, key: str) -> Iterator[bytes]:
    """Yield the lines, each to be written by one call. No other record that is on its way may have this key."""
    data = orjson.dumps([_bounded(field) if isinstance(field, str) else field for field in record])
    for at in range(0, len(data), _PART):
        kind = MORE if at + _PART < len(data) else LAST
        yield b"%b%b%b %d %b\n" % (token, kind, key.encode(), len(data), data[at : at + _PART])


def _bounded(text: str) -> str:
    return shortened(printable(text), MAX_TEXT)


class NoRecord(ValueError):
    """A job has written the line, or another part of the record was lost."""


class RecordJoiner:
    """Joins the parts of records, in bounded memory: a job may write anything."""

    def __init__(self) -> None:
        self._unfinished: dict[bytes, list[bytes]] = {}

    def add(self, line: bytes) -> WorkerRecord | WorkerProgress | None:
        """Return the record that ends in this line, which begins after the token; None if another part follows. Raises NoRecord."""
        key, size, part = (*line[1:].split(b" ", 2), b"", b"")[:3]
        parts = self._unfinished.pop(key, [])
        parts.append(part)
        if line[:1] == LAST:
            data = b"".join(parts)
            if size != b"%d" % len(data):
                raise NoRecord
            return _decoded(data)
        if len(part) != _PART or len(parts) * _PART > MAX_BYTES:
            raise NoRecord
        self._unfinished[key] = parts
        self._drop_oldest()
        return None

    def _drop_oldest(self) -> None:
        """Drop records that a thread or a program has left unfinished when it was killed."""
        held = sum(map(len, self._unfinished.values())) * _PART
        while held > MAX_UNFINISHED_BYTES or len(self._unfinished) > MAX_UNFINISHED:
            held -= len(self._unfinished.pop(next(iter(self._unfinished)))) * _PART


def _decoded(data: bytes) -> WorkerRecord | WorkerProgress:
    try:
        fields = orjson.loads(data)
    except ValueError:
        raise NoRecord from None
    if _have_types(fields, _PROGRESS_TYPES):
        return _progress(WorkerProgress(*fields))
    if not _have_types(fields, _TYPES):
        raise NoRecord
    record = WorkerRecord(*fields)
    if not 0 <= record.level < _MAX_LEVEL:
        raise NoRecord
    return record._replace(level_name=_level_name(record), logger=record.logger[:MAX_NAME].replace("\n", "\\n"))


def _have_types(fields: object, expected: tuple[tuple[type, ...], ...]) -> bool:
    if type(fields) is not list or len(fields) != len(expected):
        return False
    return all(type(field) in types for field, types in zip(fields, expected, strict=True))


def _progress(it: WorkerProgress) -> WorkerProgress:
    if not (0 <= it.done <= MAX_PROGRESS and 0 <= (it.total or 0) <= MAX_PROGRESS):
        raise NoRecord
    return it._replace(message=None if it.message is None else printable(it.message)[:MAX_PROGRESS_MESSAGE])


def _level_name(record: WorkerRecord) -> str:
    """Return the name of the level; that of a plugin's own level only if it has no spaces, at which lines of the log are split."""
    name = logging.getLevelName(record.level)
    return record.level_name if name.startswith("Level ") and _LEVEL_NAME.fullmatch(record.level_name) else name
