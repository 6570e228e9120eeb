"""The messages between the processes: a closed set, encoded and decoded here. Each is one line of JSON.

supervisor → forkserver    Hello, then Fork (with the worker's ends as descriptors), Reap, Stop
forkserver → supervisor    Importing, then Ready; Forked (with a pidfd), NotForked, Reaped
supervisor → worker        frames: [frame, [[id, handler, payload, attempt, queue, headers, priority, max_retries], …]]; NO_MORE; for async
                           workers the jobs of a line have the numbers from `frame` on, one each: [CANCEL, number] or
                           [JOB_CANCELLED, number] cancels the task of one; a line without jobs is a reminder to take permits
worker → supervisor        READY or ["not ready", reason], then one outcome a line: [id, µs, result] or [id, µs, kind, error], or
                           [id, µs, "ok", {"result": result}] of a job that has written something;
                           before and after these, ["doing", text] names what it begins: a hook, an import

Payloads, headers and results are JSON text inside JSON: the supervisor never decodes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from struct import pack, unpack
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from supervisor.jobs import Lease
from supervisor.text.printable import printable
from supervisor.text.strict_json import MAX_INTEGER
from supervisor.text.units import MAX_SECONDS
from supervisor.workers.interface import Reply

READY = b'["ready"]'
NOT_READY, DOING = "not ready", "doing"
MAX_DOING = 500  # characters
NO_MORE = b"[]"
CANCEL, JOB_CANCELLED = "cancel", "job cancelled"
PERMIT_BYTES = 4  # of an async worker: the number of the job
KINDS = frozenset({"failed", "rejected", "retry", "snoozed", "timeout", "unknown"})
WROTE: Mapping[str, Any] = MappingProxyType({"wrote": True})
"""In place of an error, for a success of a job that has written something: its output is read before the outcome is passed on."""
STATUS_LOWERED = 121
"""The exit status of a worker that may not raise its priority again after its job."""
MAX_MEMORY = 1 << 52  # bytes: no machine can address more


class Broken(ValueError):
    """A line that is not a message; the text of the error has the line."""


class Hello(NamedTuple):
    """The first message to a forkserver. `plugins` are relative to `base`; `skip` names the sources not to import. `heartbeat`
    and the values of `heartbeats` are seconds, `result_limit` is bytes, or 0 to keep no result. `token` begins the forkserver's log records. `payloads` are
    those to be checked, each as [handler, JSON]; so are those of `schedules`, by name. `interruptions` are the `soft_timeout` and the
    `cancel_grace` (seconds or null) by handler, as far as the config has them, and those of all other handlers under ""; `resources` are `nice` and `rlimits` by
    handler."""

    plugins: Sequence[str]
    base: str
    skip: Sequence[str]
    start: str
    heartbeat: float
    heartbeats: Mapping[str, float]
    result_limit: int
    owner: str
    log_level: str
    token: str
    payloads: Sequence[Sequence[str]] = ()
    interruptions: Mapping[str, Mapping[str, float | None]] = {}
    resources: Mapping[str, Mapping[str, Any]] = {}
    schedules: Mapping[str, Sequence[str]] = {}


class Fork(NamedTuple):
    """Start a worker. `serial` identifies the worker in every answer; `token` begins the marks and log records in its output.
    An async worker runs up to so many jobs at once; another one has concurrency 0."""

    serial: int
    number: int
    token: str
    concurrency: int = 0


class Reap(NamedTuple):
    serial: int  # of a worker that has exited, and whose group was signalled: its pid may be reused now


class Stop(NamedTuple):
    """Kill every child and exit."""


class Importing(NamedTuple):
    source: str


class Ready(NamedTuple):
    """`reports` are the fields of a SourceReport for each source. `misfits` are [index, message] of the payloads that their handlers
    refuse, and `schedule_misfits` [schedule, handler, message] of such schedules of the config and of plugins."""

    reports: Sequence[Mapping[str, Any]]
    misfits: Sequence[Sequence[Any]]
    schedule_misfits: Sequence[Sequence[str]]


class Forked(NamedTuple):
    serial: int
    pid: int


class NotForked(NamedTuple):
    serial: int
    why: str


class Reaped(NamedTuple):
    """A worker was reaped. `status` is that of waitpid, None if other code had waited for the worker; `peak` is bytes."""

    serial: int
    status: int | None
    peak: int | None


Message = Hello | Fork | Reap | Stop | Importing | Ready | Forked | NotForked | Reaped

_INTEGER, _NUMBER, _TEXT, _LIST, _MAPPING = (int,), (int, float), (str,), (list,), (dict,)
_OPTIONAL_INTEGER = (int, type(None))
_MESSAGES: Mapping[str, tuple[type[Any], tuple[tuple[type, ...], ...]]] = {
    "hello": (
        Hello,
        (_LIST, _TEXT, _LIST, _TEXT, _NUMBER, _MAPPING, _INTEGER, *[_TEXT] * 3, _LIST, *[_MAPPING] * 3),
    ),
    "fork": (Fork, (_INTEGER, _INTEGER, _TEXT, _INTEGER)),
    "reap": (Reap, (_INTEGER,)),
    "stop": (Stop, ()),
    "importing": (Importing, (_TEXT,)),
    "ready": (Ready, (_LIST, _LIST, _LIST)),
    "forked": (Forked, (_INTEGER, _INTEGER)),
    "not_forked": (NotForked, (_INTEGER, _TEXT)),
    "reaped": (Reaped, (_INTEGER, _OPTIONAL_INTEGER, _OPTIONAL_INTEGER)),
}
"""By tag, which is the first element of the line: the class, and the types that each of its fields may have."""
_TAGS: Mapping[type[Any], str] = {kind: tag for tag, (kind, _types) in _MESSAGES.items()}


def encode(message: Message) -> bytes:
    row = [_TAGS[type(message)], *message]
    try:
        return orjson.dumps(row) + b"\n"
    except TypeError:  # a file name may be no Unicode, and a value of a plugin may have a type of its own
        return json.dumps(row).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message in `line`. Raises Broken if it has none."""
    try:
        tag, *fields = _loads(line)
        kind, types = _MESSAGES[tag]
        if all(map(_fits, fields, types)):
            message: Message = kind(*fields)
            return message
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise Broken(f"expected a message, got {line[:80]!r}")


def _fits(value: Any, types: tuple[type, ...]) -> bool:
    return type(value) in types and (type(value) is not int or -MAX_INTEGER <= value <= MAX_INTEGER)


def _loads(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except ValueError:
        return json.loads(line)


class Lines:
    """Joins chunks into whole lines. The cost grows with the bytes only, however long a line is."""

    __slots__ = ("_chunks", "pending")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.pending = 0
        """Bytes held of a line that has not ended."""

    def block(self, chunk: bytes) -> bytes | None:
        """Return the lines that end in this chunk in one piece, without its last newline; None if no line ends in it."""
        end = chunk.rfind(b"\n")
        if end < 0:
            self._chunks.append(chunk)
            self.pending += len(chunk)
            return None
        block = chunk[:end]
        if self._chunks:
            block = b"".join((*self._chunks, block))
            self._chunks.clear()
        rest = chunk[end + 1 :]
        self.pending = len(rest)
        if rest:
            self._chunks.append(rest)
        return block

    def split(self, chunk: bytes) -> list[bytes]:
        block = self.block(chunk)
        return [] if block is None else block.split(b"\n")


def encode_not_ready(why: str) -> bytes:
    return orjson.dumps([NOT_READY, why]) + b"\n"


def reason_not_ready(line: bytes) -> str:
    """Raises Broken."""
    if (why := _text_of(NOT_READY, line)) is None:
        raise Broken(f"expected {READY!r}, got {line[:80]!r}")
    return why


def encode_doing(what: str) -> bytes:
    return orjson.dumps([DOING, printable(what)[:MAX_DOING]]) + b"\n"


def doing(line: bytes) -> str | None:
    """Return what the worker has begun, or None if the line is another message."""
    what = _text_of(DOING, line)
    return None if what is None else printable(what)[:MAX_DOING]  # a job may have written it


def _text_of(wanted: str, line: bytes) -> str | None:
    try:
        tag, text = orjson.loads(line)
    except (ValueError, TypeError):
        return None
    return text if tag == wanted and type(text) is str else None


# jobs and outcomes: hot paths


def encode_frame(frame: int, leases: Sequence[Lease]) -> bytes:
    rows = [
        (id, handler, payload, retries + 1, queue, headers, priority, policy.max_retries)
        for id, _, handler, queue, payload, headers, retries, priority, _, _, _, policy, _ in leases
    ]
    try:
        return orjson.dumps([frame, rows]) + b"\n"
    except TypeError:  # text that is no Unicode: the worker rejects that job alone
        return encode_frame(frame, [_printable(lease) for lease in leases])


def encode_cancel(frame: int, *, of_job: bool = False) -> bytes:
    return orjson.dumps([JOB_CANCELLED if of_job else CANCEL, frame]) + b"\n"


def encode_permits(frames: Sequence[int]) -> bytes:
    return pack(f"={len(frames)}I", *frames)


def decode_permits(data: bytes) -> list[int]:
    count = len(data) // PERMIT_BYTES
    return [*unpack(f"={count}I", data[: count * PERMIT_BYTES])]


def _printable(lease: Lease) -> Lease:
    return lease._replace(
        handler=printable(lease.handler),
        queue=printable(lease.queue),
        payload=printable(lease.payload),
        headers=None if lease.headers is None else printable(lease.headers),
    )


def decode_outcomes(block: bytes, max_result: int, longest: float) -> Iterable[Reply]:
    """Return the outcomes of whole lines, in order. Their iterator raises Broken at the first line that is not an outcome.

    A result longer than `max_result` is none. No job can have taken more than `longest` seconds: a time that is impossible, such
    as that of a job that replaced its clock, becomes the nearest possible one.
    """
    try:
        rows = orjson.loads(b"[%b]" % block.replace(b"\n", b",")) or _one_by_one(block)
    except ValueError:
        rows = _one_by_one(block)
    most = longest * 1e6
    successes = _successes(rows, max_result, most)
    if successes is None:
        return _each_outcome(rows, max_result, most)
    ids, times, results = successes
    columns = ids, repeat("ok"), [took * 1e-6 for took in times], results, repeat(None)
    return [*map(tuple.__new__, repeat(Reply), zip(*columns, strict=False))]


def _each_outcome(rows: Iterable[Any], max_result: int, most: float) -> Iterator[Reply]:
    new = tuple.__new__
    for row in rows:
        try:
            if len(row) == 3:
                job_id, took, result = row
                fits = result is None or (type(result) is str and len(result) <= max_result)
                if type(job_id) is int and type(took) is int and fits:
                    seconds = took * 1e-6 if 0 <= took <= most else _bounded(took, most)
                    yield new(Reply, (job_id, "ok", seconds, result, None))
                    continue
            else:
                job_id, took, kind, error = row
                if kind == "ok" and error.keys() == {"result"}:
                    for outcome in _each_outcome([[job_id, took, error["result"]]], max_result, most):
                        yield outcome._replace(error=dict(WROTE))
                    continue
                if type(job_id) is int and type(took) is int and kind in KINDS and _is_error(error):
                    seconds = took * 1e-6 if 0 <= took <= most else _bounded(took, most)
                    yield new(Reply, (job_id, kind, seconds, None, error))
                    continue
        except (TypeError, ValueError, AttributeError):
            pass
        raise Broken(f"expected an outcome, got {_beginning(row)}")


_TEXT_OR_NONE = {str, type(None)}
_Columns = tuple[Sequence[int], Sequence[int], Sequence[str | None]]


def _successes(rows: Any, max_result: int, most: float) -> _Columns | None:
    """Return the ids, the times and the results of the rows, if all are outcomes of successes, of at most so many microseconds. It
    checks them together, which is faster than one by one."""
    if type(rows) is not list or not _are_all(list, map(type, rows)) or not _are_all(3, map(len, rows)):
        return None
    ids, times, results = zip(*rows, strict=True)
    if not (
        _are_all(int, map(type, ids)) and _are_all(int, map(type, times)) and set(map(type, results)) <= _TEXT_OR_NONE
    ):
        return None
    if min(times) >= 0 and max(times) <= most and max(map(len, filter(None, results)), default=0) <= max_result:
        return ids, times, results
    return None


def _are_all(value: object, values: Iterable[object]) -> bool:
    them = [*values]
    return them.count(value) == len(them)


def _bounded(took: int, most: float) -> float:
    return max(0.0, min(took, most)) * 1e-6


_ERROR_FIELDS: Mapping[str, tuple[type, ...]] = {
    "type": (str,),
    "message": (str,),
    "traceback": (str,),
    "retryable": (bool,),
    "stderr": (str, type(None)),
    "peak_memory": _OPTIONAL_INTEGER,
    "most": _OPTIONAL_INTEGER,
    "until": _OPTIONAL_INTEGER,
}


def _is_error(error: Any) -> bool:
    """Return whether a worker may have reported this error: a job can also write to its worker's channel."""
    if type(error) is not dict or any(
        type(value) not in _ERROR_FIELDS.get(key, (type(value),)) for key, value in error.items()
    ):
        return False
    peak, after = error.get("peak_memory"), error.get("after")
    if peak is not None and not 0 <= peak <= MAX_MEMORY:
        return False
    return after is None or (type(after) in _NUMBER and 0 <= after <= MAX_SECONDS)


def _beginning(row: Any) -> str:
    try:
        return repr(row)[:80]
    except RecursionError:
        return "a deeply nested line"


def _one_by_one(block: bytes) -> Iterator[Any]:
    for line in block.split(b"\n"):
        try:
            yield orjson.loads(line)
        except ValueError:
            raise Broken(f"expected an outcome, got {line[:80]!r}") from None


def with_output(line: bytes) -> bytes:
    """Return the line of an outcome with a note that the job has written something, unless it has failed."""
    if line.endswith(b"}]\n"):
        return line
    job_id, took, result = line[1:-2].split(b",", 2)
    return b'[%b,%b,"ok",{"result":%b}]\n' % (job_id, took, result)


def encode_failure(job_id: int, took: int, kind: str, error: Mapping[str, Any]) -> bytes:
    """Return the line of a job that failed. `took` is microseconds."""
    return orjson.dumps([job_id, took, kind, error]) + b"\n"
