"""What crosses the pipes: a closed set of messages, encoded and matched here, all of them lines of JSON.

supervisor → nursery    Hello, then Fork (with the worker's ends as descriptors), Reap, Stop
nursery → supervisor    Importing, then Ready; Forked (with a pidfd), NotForked, Reaped
supervisor → worker     frames: [frame, [[id, handler, payload, attempt, queue, headers, priority], …]]; NO_MORE
worker → supervisor     READY, then one outcome a line: [id, µs, result] or [id, µs, kind, error]

Payloads, headers and results are JSON text inside JSON: the supervisor never decodes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from supervisor.jobs import Lease
from supervisor.text.printable import printable
from supervisor.text.strict_json import MAX_INTEGER
from supervisor.text.units import MAX_SECONDS
from supervisor.workers.interface import Reply

READY = b'["ready"]'
NO_MORE = b"[]"
KINDS = frozenset({"failed", "rejected", "retry", "unknown"})


class Broken(ValueError):
    """A line that is no message. The message says why."""


class Hello(NamedTuple):
    """The first word to a nursery. `plugins` are relative to `base`; `skip` names the sources not to import."""

    plugins: Sequence[str]
    base: str
    skip: Sequence[str]
    start: str
    heartbeat: float
    heartbeats: Mapping[str, float]
    result_limit: int
    owner: str


class Fork(NamedTuple):
    """Start a worker. `serial` names this order in every answer; `token` begins its marks in its output."""

    serial: int
    number: int
    token: str


class Reap(NamedTuple):
    """The group of this dead worker has been signalled: its process id may be given up."""

    serial: int


class Stop(NamedTuple):
    """Kill what is left below and exit."""


class Importing(NamedTuple):
    source: str


class Ready(NamedTuple):
    """Every source was tried: plugin_manager.SourceReport of each, as mappings."""

    reports: Sequence[Mapping[str, Any]]


class Forked(NamedTuple):
    serial: int
    pid: int


class NotForked(NamedTuple):
    serial: int
    why: str


class Reaped(NamedTuple):
    """`status` as waitpid gives it, None if somebody else took it; `peak` is bytes."""

    serial: int
    status: int | None
    peak: int | None


Message = Hello | Fork | Reap | Stop | Importing | Ready | Forked | NotForked | Reaped

_INTEGER, _NUMBER, _TEXT, _LIST, _MAPPING = (int,), (int, float), (str,), (list,), (dict,)
_FIELDS: Mapping[type[Any], tuple[tuple[type, ...], ...]] = {
    Hello: (_LIST, _TEXT, _LIST, _TEXT, _NUMBER, _MAPPING, _INTEGER, _TEXT),
    Fork: (_INTEGER, _INTEGER, _TEXT),
    Reap: (_INTEGER,),
    Stop: (),
    Importing: (_TEXT,),
    Ready: (_LIST,),
    Forked: (_INTEGER, _INTEGER),
    NotForked: (_INTEGER, _TEXT),
    Reaped: (_INTEGER, (int, type(None)), (int, type(None))),
}
_MESSAGES: Mapping[str, type[Any]] = {message.__name__: message for message in _FIELDS}


def encode(message: Message) -> bytes:
    whole = [type(message).__name__, *message]
    try:
        return orjson.dumps(whole) + b"\n"
    except TypeError:  # names of files need be no Unicode; what a plugin brings may be of its own kind
        return json.dumps(whole).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Raises Broken."""
    try:
        name, *fields = _loads(line)
        kind = _MESSAGES[name]
        if all(map(_fits, fields, _FIELDS[kind])):
            message: Message = kind(*fields)
            return message
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise Broken(f"expected a message, got {line[:80]!r}")


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    return type(value) in kinds and (type(value) is not int or -MAX_INTEGER <= value <= MAX_INTEGER)


def _loads(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except ValueError:
        return json.loads(line)


class Lines:
    """Whole lines out of chunks, at a cost that grows with the bytes, whatever the length of a line."""

    __slots__ = ("_chunks", "_size")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """Bytes held of a line that has not ended."""
        return self._size

    def block(self, chunk: bytes) -> bytes | None:
        """All lines that end in this chunk, in one piece without its last newline; None if none does."""
        end = chunk.rfind(b"\n")
        if end < 0:
            self._chunks.append(chunk)
            self._size += len(chunk)
            return None
        whole = chunk[:end]
        if self._chunks:
            whole = b"".join((*self._chunks, whole))
            self._chunks.clear()
        rest = chunk[end + 1 :]
        self._size = len(rest)
        if rest:
            self._chunks.append(rest)
        return whole

    def split(self, chunk: bytes) -> list[bytes]:
        block = self.block(chunk)
        return [] if block is None else block.split(b"\n")


# --- jobs and outcomes: the hot path, plain on purpose


def encode_frame(frame: int, leases: Sequence[Lease]) -> bytes:
    try:
        # By index: id, handler, payload, attempt, queue, headers, priority.
        return orjson.dumps([frame, [(j[0], j[2], j[4], j[6] + 1, j[3], j[5], j[7]) for j in leases]]) + b"\n"
    except TypeError:  # text that is not Unicode: the worker rejects that job alone
        return encode_frame(frame, [_printable(lease) for lease in leases])


def _printable(lease: Lease) -> Lease:
    return lease._replace(
        handler=printable(lease.handler),
        queue=printable(lease.queue),
        payload=printable(lease.payload),
        headers=None if lease.headers is None else printable(lease.headers),
    )


def decode_outcomes(block: bytes) -> Iterator[Reply]:
    """Outcomes of whole lines, in order; raises Broken at the first line that is none, after those before it."""
    try:
        rows = orjson.loads(b"[%b]" % block.replace(b"\n", b",")) or _one_by_one(block)
    except ValueError:
        rows = _one_by_one(block)
    new = tuple.__new__
    if _all_succeeded(rows):
        yield from [new(Reply, (job_id, "ok", took * 1e-6, result, None)) for job_id, took, result in rows]
        return
    for row in rows:
        try:
            if len(row) == 3:
                job_id, took, result = row
                if type(job_id) is int and type(took) is int and (result is None or type(result) is str):
                    yield new(Reply, (job_id, "ok", took * 1e-6, result, None))
                    continue
            else:
                job_id, took, kind, error = row
                if type(job_id) is int and type(took) is int and kind in KINDS and _tells(error):
                    yield new(Reply, (job_id, kind, took * 1e-6, None, error))
                    continue
        except (TypeError, ValueError):
            pass
        raise Broken(f"expected an outcome, got {_beginning(row)}")


_LISTS, _THREE, _INTEGERS, _TEXTS = {list}, {3}, {int}, {str, type(None)}


def _all_succeeded(rows: Any) -> bool:
    """Whether these are outcomes of successes only, told without a look at each."""
    if type(rows) is not list or set(map(type, rows)) != _LISTS or set(map(len, rows)) != _THREE:
        return False
    ids, times, results = zip(*rows, strict=True)
    return set(map(type, ids)) == set(map(type, times)) == _INTEGERS and set(map(type, results)) <= _TEXTS


_TOLD: Mapping[str, tuple[type, ...]] = {
    "type": (str,),
    "message": (str,),
    "traceback": (str,),
    "retryable": (bool,),
    "stderr": (str, type(None)),
    "peak_memory": (int, type(None)),
}


def _tells(error: Any) -> bool:
    """Whether it is an error as a worker tells it: a job can write to its worker's channel, too."""
    if type(error) is not dict or any(
        type(value) not in _TOLD.get(key, (type(value),)) for key, value in error.items()
    ):
        return False
    after = error.get("after")
    return after is None or (type(after) in _NUMBER and 0 <= after <= MAX_SECONDS)


def _beginning(row: Any) -> str:
    try:
        return repr(row)[:80]
    except RecursionError:
        return "something nested deep"


def _one_by_one(block: bytes) -> Iterator[Any]:
    for line in block.split(b"\n"):
        try:
            yield orjson.loads(line)
        except ValueError:
            raise Broken(f"expected an outcome, got {line[:80]!r}") from None


def encode_failure(job_id: int, took: int, kind: str, error: Mapping[str, Any]) -> bytes:
    return orjson.dumps([job_id, took, kind, error]) + b"\n"
