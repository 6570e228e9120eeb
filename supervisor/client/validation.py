"""From what a program writes to a row of the store: everything checked, every error naming the key and what was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from operator import attrgetter
from typing import Any, NoReturn

from supervisor.config.settings import BackoffSettings
from supervisor.errors import InvalidJob
from supervisor.jobs import MAX_NAME, MAX_RETRIES, Backoff, NewJob
from supervisor.stores.records import EnqueueBatch, EnqueueRow
from supervisor.text.strict_json import MAX_INTEGER, NotJSON, encode
from supervisor.text.units import parse_duration

_KEYS = tuple(field.name for field in fields(NewJob))
_all_fields = attrgetter(*_KEYS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def batch_of(
    jobs: Iterable[NewJob | Mapping[str, Any] | tuple[str, Any]], *, limit: int, queue_for: Callable[[str], str]
) -> EnqueueBatch:
    """`row_of` each; an InvalidJob says which."""
    checks = Checks(limit=limit, queue_for=queue_for)
    add = checks.add
    try:
        for job in jobs:
            add(job)
    except InvalidJob as error:
        raise InvalidJob(f"jobs[{len(checks.rows)}]: {error}") from None
    return checks.rows


class Checks:
    """`rows` has the row of each job that was added. Of one that is a handler and a payload, only the payload is checked if
    another of that handler was before. Plain: a program that enqueues many at once waits for this."""

    def __init__(self, *, limit: int, queue_for: Callable[[str], str]) -> None:
        self.rows = EnqueueBatch()
        self._limit, self._queue_for = limit, queue_for
        self._known: dict[str, int] = {}
        self._add_payload, self._add_place = self.rows.payloads.append, self.rows.places.append

    def add(self, job: NewJob | Mapping[str, Any] | tuple[str, Any]) -> None:
        """Raises InvalidJob; then `rows` is as it was."""
        if type(job) is dict and len(job) == 2 and "handler" in job and "payload" in job:
            job = job["handler"], job["payload"]
        if type(job) is tuple and len(job) == 2 and type(job[0]) is str:
            handler, payload = job
            place = self._known.get(handler)
            if place is not None:
                self._add_payload(_json("payload", payload, self._limit))
                self._add_place(place)
                return
            self._known[handler] = self.rows.append(enqueue_row(job, limit=self._limit, queue_for=self._queue_for))
        else:
            self.rows.append(enqueue_row(job, limit=self._limit, queue_for=self._queue_for))


def enqueue_row(
    job: NewJob | Mapping[str, Any] | tuple[str, Any], *, limit: int, queue_for: Callable[[str], str]
) -> EnqueueRow:
    """The row to enqueue of a NewJob, a mapping with its keys, or (handler, payload); or InvalidJob."""
    if isinstance(job, tuple) and len(job) == 2:
        return checked(*job, limit=limit, queue_for=queue_for)
    if isinstance(job, NewJob):
        return checked(*_all_fields(job), limit=limit, queue_for=queue_for)
    if isinstance(job, Mapping):
        for key in job:
            if key not in _KEYS:
                near = get_close_matches(str(key), _KEYS, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"expected any of {', '.join(_KEYS)}"
                raise InvalidJob(f"{key}: unknown key; {hint}")
        if "handler" not in job:
            raise InvalidJob("handler: missing; expected a handler's name")
        return checked(**job, limit=limit, queue_for=queue_for)
    raise InvalidJob(f"expected a NewJob, a mapping or (handler, payload), got {job!r:.80}")


def checked(
    handler: Any, payload: Any = None, queue: Any = None, priority: Any = 0, delay: Any = None, at: Any = None,
    max_retries: Any = None, timeout: Any = None, backoff: Any = None, headers: Any = None, *,
    limit: int, queue_for: Callable[[str], str],
) -> EnqueueRow:  # fmt: skip
    """The row to enqueue, by the fields of NewJob in their order; or InvalidJob. `limit` is the most bytes of payload, and of
    headers; `queue_for` gives the queue of a handler whose job names none. Texts and numbers in it are plain ones, as every
    store writes them, even if they were given as members of an enum. Plain: of bulk enqueue this is half the cost."""
    if delay is not None and at is not None:
        raise InvalidJob("delay and at: expected at most one of them")
    handler = _name("handler", handler)
    row = (
        handler,
        _json("payload", payload, limit),
        _name("queue", queue_for(handler) if queue is None else queue),
        _whole("priority", priority, -MAX_INTEGER - 1, MAX_INTEGER),
        None if delay is None else _seconds("delay", delay),
        None if at is None else _moment(at),
        None if max_retries is None else _whole("max_retries", max_retries, 0, MAX_RETRIES),
        None if timeout is None else _timeout(timeout),
        None if backoff is None else _backoff(backoff),
        None if headers is None else _headers(headers, limit),
    )
    return tuple.__new__(EnqueueRow, row)


def _wrong(key: str, expected: str, value: Any) -> NoReturn:
    raise InvalidJob(f"{key}: expected {expected}, got {value!r:.80}")


def _name(key: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not _is_name(value):
        _wrong(key, f"a name of 1 to {MAX_NAME} printable characters", value)
    return value if type(value) is str else str.__str__(value)


@lru_cache(1024)
def _is_name(value: str) -> bool:
    return value.isprintable() and value == value.strip()


def _json(key: str, value: Any, limit: int) -> str:
    try:
        return encode(value, limit=limit, what=key)
    except NotJSON as error:
        raise InvalidJob(str(error)) from None


def _headers(value: Any, limit: int) -> str | None:
    if not isinstance(value, Mapping):
        _wrong("headers", "a mapping", value)
    return _json("headers", dict(value), limit) if value else None


def _whole(key: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        _wrong(key, f"a whole number from {least} to {most}", value)
    return value if type(value) is int else int.__int__(value)


def _seconds(key: str, value: Any) -> float:
    try:
        return parse_duration(value, zero=True)
    except (TypeError, ValueError) as error:
        raise InvalidJob(f"{key}: {error}") from None


def _timeout(value: Any) -> float:
    """0 is no limit."""
    return 0.0 if isinstance(value, str) and value == "none" else _seconds("timeout", value)


def _moment(value: Any) -> int:
    """Microseconds since the epoch of an aware datetime, or of its ISO 8601 text."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            _wrong("at", "a time such as 2030-01-31T09:30:00+01:00", value)
    if not isinstance(value, datetime) or value.tzinfo is None:
        _wrong("at", "a time with a time zone", value)
    return (value - _EPOCH) // timedelta(microseconds=1)


def _backoff(value: Any) -> Backoff:
    if isinstance(value, Backoff):
        value = value._asdict()
    if not isinstance(value, Mapping):
        _wrong("backoff", "a mapping with base, factor, max, jitter", value)
    try:
        return BackoffSettings(**{str(key): part for key, part in value.items()}).curve
    except ValueError as error:
        raise InvalidJob(f"backoff.{error}") from None
