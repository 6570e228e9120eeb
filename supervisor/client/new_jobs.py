"""The checks of new jobs: an error names the key and what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any, SupportsIndex, TypedDict

from supervisor.client.checked_extras import checked_extras, name_of, wrong
from supervisor.config.retries import BackoffSettings
from supervisor.config.settings import Settings
from supervisor.errors import InvalidJob
from supervisor.jobs import MAX_RETRIES, Backoff, NewJob
from supervisor.parents import PARENTS
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueBatch, EnqueueRow
from supervisor.text.names import did_you_mean_or_all
from supervisor.text.strict_json import MAX_INTEGER, NotJSON, encode
from supervisor.text.units import microseconds_of, parse_duration

AnyJob = NewJob | Mapping[str, Any] | tuple[str, Any]

_KEYS = tuple(field.name for field in fields(NewJob))
_all_fields = attrgetter(*_KEYS)
_WITHOUT_EXTRAS = len(_KEYS) - len(Extras._fields)
_NO_EXTRAS = _all_fields(NewJob(""))[_WITHOUT_EXTRAS:]


class Options(TypedDict, total=False):
    """The options of a job: the fields of NewJob without handler and payload."""

    queue: str | None
    priority: int
    delay: float | str | None
    at: datetime | str | None
    max_retries: int | None
    timeout: float | str | None
    backoff: Backoff | Mapping[str, Any] | None
    headers: Mapping[str, Any] | None
    unique: str | None
    unique_while: float | str | None
    on_conflict: str | None
    key: str | None
    on_failure: str | None
    group: str | None
    after: Sequence[SupportsIndex] | None
    on_parent_failed: str | None
    tags: Sequence[str] | None
    expires: float | str | None


def batch_of(settings: Settings, jobs: Iterable[AnyJob]) -> EnqueueBatch:
    """Return a batch with the `enqueue_row` of each job. Raises InvalidJob, with the index of the job."""
    builder = BatchBuilder(settings)
    add = builder.add
    try:
        for job in jobs:
            add(job)
    except InvalidJob as error:
        raise InvalidJob(f"jobs[{len(builder.batch)}]: {error}") from None
    return builder.batch


class BatchBuilder:
    """A batch to which jobs are added one by one.

    If a job is only a handler and a payload, and the handler was in an earlier one, only the payload is checked. This code is
    fast rather than short: a program that enqueues many jobs at once waits for it.
    """

    def __init__(self, settings: Settings) -> None:
        self.batch = EnqueueBatch()
        self._settings, self._limit = settings, settings.limits.payload
        self._known: dict[str, int] = {}
        self._add_payload, self._add_place = self.batch.payloads.append, self.batch.places.append

    def add(self, job: AnyJob) -> None:
        """Add a job. Raises InvalidJob; the batch is unchanged then."""
        if type(job) is dict and len(job) == 2 and "handler" in job and "payload" in job:
            job = job["handler"], job["payload"]
        if type(job) is tuple and len(job) == 2 and type(job[0]) is str:
            handler, payload = job
            place = self._known.get(handler)
            if place is not None:
                self._add_payload(_json("payload", payload, self._limit))
                self._add_place(place)
                return
            self._known[handler] = self.batch.append(enqueue_row(self._settings, job))
        else:
            self.batch.append(enqueue_row(self._settings, job))


def enqueue_row(settings: Settings, job: AnyJob) -> EnqueueRow:
    """Return the row to enqueue for a NewJob, a mapping with its keys, or (handler, payload). Raises InvalidJob."""
    if isinstance(job, tuple) and len(job) == 2:
        return checked(settings, *job)
    if isinstance(job, NewJob):
        values = _all_fields(job)
        extras = values[_WITHOUT_EXTRAS:]
        its = {} if extras == _NO_EXTRAS else dict(zip(Extras._fields, extras, strict=True))
        return checked(settings, *values[:_WITHOUT_EXTRAS], **its)
    if isinstance(job, Mapping):
        for key in job:
            if key not in _KEYS:
                raise InvalidJob(f"{key}: unknown key{did_you_mean_or_all(str(key), _KEYS)}")
        if "handler" not in job:
            raise InvalidJob("handler: missing; expected a handler's name")
        return checked(settings, **job)
    raise InvalidJob(f"expected a NewJob, a mapping or (handler, payload), got {job!r:.80}")


def checked(
    settings: Settings, handler: Any, payload: Any = None, queue: Any = None, priority: Any = 0, delay: Any = None,
    at: Any = None, max_retries: Any = None, timeout: Any = None, backoff: Any = None, headers: Any = None, **extras: Any,
) -> EnqueueRow:  # fmt: skip
    """Return the row to enqueue for the fields of a NewJob, in their order; the `extras` by name. Raises InvalidJob.

    Members of an enum become plain text and numbers, which every store writes alike. This code is fast rather than short: it
    is half the cost of enqueueing many jobs.
    """
    if delay is not None and at is not None:
        raise InvalidJob("delay and at: expected at most one of them")
    handler, limit = name_of("handler", handler), settings.limits.payload
    row = (
        handler,
        _json("payload", payload, limit),
        name_of("queue", settings.queue_for(handler) if queue is None else queue),
        _whole("priority", priority, -MAX_INTEGER - 1, MAX_INTEGER),
        None if delay is None else _seconds("delay", delay),
        None if at is None else _moment(at),
        None if max_retries is None else _whole("max_retries", max_retries, 0, MAX_RETRIES),
        None if timeout is None else _timeout(timeout),
        None if backoff is None else _backoff(backoff),
        None if headers is None else _headers(headers, limit),
        checked_extras(extras) if extras else None,
    )
    return tuple.__new__(EnqueueRow, row)


def _json(key: str, value: Any, limit: int) -> str:
    try:
        return encode(value, limit=limit, what=key)
    except NotJSON as error:
        raise InvalidJob(str(error)) from None


def _headers(value: Any, limit: int) -> str | None:
    if not isinstance(value, Mapping):
        wrong("headers", "a mapping", value)
    if PARENTS in value:
        raise InvalidJob(f"headers: {PARENTS} is set by the store")
    return _json("headers", dict(value), limit) if value else None


def _whole(key: str, value: Any, minimum: int, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        wrong(key, f"a whole number from {minimum} to {maximum}", value)
    return value if type(value) is int else int.__int__(value)


def _seconds(key: str, value: Any) -> float:
    try:
        return parse_duration(value, zero=True)
    except (TypeError, ValueError) as error:
        raise InvalidJob(f"{key}: {error}") from None


def _timeout(value: Any) -> float:
    """Return seconds; 0 is no limit."""
    return 0.0 if isinstance(value, str) and value == "none" else _seconds("timeout", value)


def _moment(value: Any) -> int:
    """Return the microseconds since the epoch of an aware datetime, or of its ISO 8601 text."""
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            wrong("at", "a time such as 2030-01-31T09:30:00+01:00", value)
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        wrong("at", "a time with a time zone, such as 2030-01-31T09:30:00+01:00", value)
    return microseconds_of(moment)


def _backoff(value: Any) -> Backoff:
    if isinstance(value, Backoff):
        value = value._asdict()
    if not isinstance(value, Mapping):
        wrong("backoff", "a mapping with base, factor, max, jitter, exponential", value)
    try:
        return BackoffSettings(**{str(key): part for key, part in value.items()}).curve
    except ValueError as error:
        raise InvalidJob(f"backoff.{error}") from None
