"""Client: enqueue jobs from any program; and the checks of new jobs, each error of which names the key and what was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from supervisor.client.store_access import StoreAccess
from supervisor.config.loading import load
from supervisor.config.settings import BackoffSettings, Settings
from supervisor.errors import ConfigError, InvalidJob, StoreError
from supervisor.jobs import MAX_RETRIES, Backoff, NewJob
from supervisor.stores.opening import attempts_while_unavailable, settings_of, transactional_enqueue_of
from supervisor.stores.records import EnqueueBatch, EnqueueRow
from supervisor.text.names import NAME, is_name
from supervisor.text.strict_json import MAX_INTEGER, NotJSON, encode
from supervisor.text.suggestions import did_you_mean_or_all
from supervisor.text.units import parse_duration

if TYPE_CHECKING:
    from supervisor.stores.protocol import Store, TransactionalEnqueue

Answer = TypeVar("Answer")
AnyJob = NewJob | Mapping[str, Any] | tuple[str, Any]

_KEYS = tuple(field.name for field in fields(NewJob))
_all_fields = attrgetter(*_KEYS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Client:
    """Enqueues into the store of `url`, of given Settings, or of the configuration that the command line would find.

    Connects on first use in a process, and again after a fork: in the child, and to a SQLite file in the parent too.
    Thread-safe; a call that interrupts another on the same thread (from a signal handler, for example) may be refused with StoreError.
    A SQLite file that doesn't exist is refused unless `create`. While the store is unavailable or locked, or other threads use
    the client, calls are tried again for `timeout` seconds before they raise StoreUnavailable. Raises StoreError, and
    `supervisor.client.InvalidJob` (a ValueError) for jobs that can't be enqueued.
    """

    def __init__(self, url: str | Settings | None = None, *, create: bool = False, timeout: float = 30.0) -> None:
        self._settings = _settings(url)
        self._access = StoreAccess(self._settings, create=create, timeout=timeout)
        self._transactional_enqueue: TransactionalEnqueue | None = None

    def __enter__(self) -> Client:
        self._ask(lambda store: None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def enqueue(
        self,
        handler: str,
        payload: Any = None,
        *,
        queue: str | None = None,
        priority: int = 0,
        delay: float | str | None = None,
        at: datetime | str | None = None,
        max_retries: int | None = None,
        timeout: float | str | None = None,
        backoff: Backoff | Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> int:
        """Return the id of the job, once it is durable; with `connection`, as soon as your own transaction there holds it.

        `payload` and `headers` are JSON values. `delay` and `timeout` are seconds or text such as "10s" (`timeout` also
        "none"); `at` is an aware datetime or its ISO 8601 text. `max_retries`, `timeout` and `backoff` (keys as in
        `retry.backoff`; a key that is left out has its default, whatever the config has) override every other setting for
        this job.

        `connection` leads to the database of a PostgreSQL store: a psycopg connection, a SQLAlchemy Connection or Session, or
        Django's. The job then exists if and when its transaction commits (in autocommit, at once). Nothing is tried again:
        errors of the database are raised as that library raises them; StoreError is raised if `connection` is not fit.
        """
        settings = self._settings
        row = checked(
            handler, payload, queue, priority, delay, at, max_retries, timeout, backoff, headers,
            limit=settings.limits.payload, queue_for=settings.queue_for,
        )  # fmt: skip
        return self._enqueue(EnqueueBatch([row]), connection)[0]

    def enqueue_many(self, jobs: Iterable[AnyJob], *, connection: Any = None) -> list[int]:
        """Return the ids in order, once all jobs are durable; if one is refused, none is enqueued.

        A job is a NewJob, a mapping with the arguments of `enqueue` by name, or (handler, payload). `connection` is as there.
        """
        settings = self._settings
        return self._enqueue(batch_of(jobs, limit=settings.limits.payload, queue_for=settings.queue_for), connection)

    def job(self, id: int) -> dict[str, Any] | None:
        """Return the job as `supervisor jobs show --json` prints it; None if there is none."""
        return self._ask(lambda store: store.get(id))

    def cancel(self, id: int) -> bool:
        """Cancel the job, and return whether this call did it: a job that has ended stays as it is. The worker of a running job
        is killed. If the store was unavailable for a moment, this may return False though it has cancelled the job; if that
        matters, ask `job` for its state."""
        cancelled, _ = self._ask(lambda store: store.cancel([id]))
        return bool(cancelled)

    def close(self) -> None:
        """Disconnect; the next use connects again."""
        self._access.close()

    def _enqueue(self, batch: EnqueueBatch, connection: Any) -> list[int]:
        """Every attempt offers the same `batch`: by it the store recognizes an attempt that may have been committed."""
        if connection is not None:
            if self._transactional_enqueue is None:
                self._transactional_enqueue = transactional_enqueue_of(self._settings.store, self._ask)
            return self._transactional_enqueue.enqueue(connection, batch)
        return self._ask(lambda store: store.enqueue(batch))

    def _ask(self, question: Callable[[Store], Answer]) -> Answer:
        deadline = self._access.deadline()
        for attempt in attempts_while_unavailable(self._access.timeout):
            with attempt, self._access.use(deadline) as store:
                answer = question(store)
        return answer


def _settings(url: str | Settings | None) -> Settings:
    if url is None:
        return load(None)
    if isinstance(url, Settings):
        return url
    try:
        return Settings(store=settings_of(url))
    except ConfigError as error:
        raise StoreError(str(error)) from None


# --- the checks of new jobs


def batch_of(jobs: Iterable[AnyJob], *, limit: int, queue_for: Callable[[str], str]) -> EnqueueBatch:
    """Return the `enqueue_row` of each job; an InvalidJob names the index of the job."""
    builder = BatchBuilder(limit=limit, queue_for=queue_for)
    add = builder.add
    try:
        for job in jobs:
            add(job)
    except InvalidJob as error:
        raise InvalidJob(f"jobs[{len(builder.batch)}]: {error}") from None
    return builder.batch


class BatchBuilder:
    """Makes a batch of jobs that are added one by one.

    Of a job that is only a handler and a payload, no more than the payload is checked once the handler is known. Plain code: a
    program that enqueues many jobs at once waits for this.
    """

    def __init__(self, *, limit: int, queue_for: Callable[[str], str]) -> None:
        self.batch = EnqueueBatch()
        self._limit, self._queue_for = limit, queue_for
        self._known: dict[str, int] = {}
        self._add_payload, self._add_place = self.batch.payloads.append, self.batch.places.append

    def add(self, job: AnyJob) -> None:
        """Raises InvalidJob, and then leaves the batch as it was."""
        if type(job) is dict and len(job) == 2 and "handler" in job and "payload" in job:
            job = job["handler"], job["payload"]
        if type(job) is tuple and len(job) == 2 and type(job[0]) is str:
            handler, payload = job
            place = self._known.get(handler)
            if place is not None:
                self._add_payload(_json("payload", payload, self._limit))
                self._add_place(place)
                return
            self._known[handler] = self.batch.append(enqueue_row(job, limit=self._limit, queue_for=self._queue_for))
        else:
            self.batch.append(enqueue_row(job, limit=self._limit, queue_for=self._queue_for))


def enqueue_row(job: AnyJob, *, limit: int, queue_for: Callable[[str], str]) -> EnqueueRow:
    """Return the row to enqueue of a NewJob, of a mapping with its keys, or of (handler, payload). Raises InvalidJob."""
    if isinstance(job, tuple) and len(job) == 2:
        return checked(*job, limit=limit, queue_for=queue_for)
    if isinstance(job, NewJob):
        return checked(*_all_fields(job), limit=limit, queue_for=queue_for)
    if isinstance(job, Mapping):
        for key in job:
            if key not in _KEYS:
                raise InvalidJob(f"{key}: unknown key{did_you_mean_or_all(str(key), _KEYS)}")
        if "handler" not in job:
            raise InvalidJob("handler: missing; expected a handler's name")
        return checked(**job, limit=limit, queue_for=queue_for)
    raise InvalidJob(f"expected a NewJob, a mapping or (handler, payload), got {job!r:.80}")


def checked(
    handler: Any, payload: Any = None, queue: Any = None, priority: Any = 0, delay: Any = None, at: Any = None,
    max_retries: Any = None, timeout: Any = None, backoff: Any = None, headers: Any = None, *,
    limit: int, queue_for: Callable[[str], str],
) -> EnqueueRow:  # fmt: skip
    """Return the row to enqueue, of the fields of NewJob in their order. Raises InvalidJob.

    `limit` is how many bytes the payload may have, and the headers; `queue_for` gives the queue of a handler whose job names
    none. Members of an enum become plain text and numbers, which every store writes alike. Plain code: this is half the cost
    of enqueueing many jobs.
    """
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
    if not is_name(value):
        _wrong(key, NAME, value)
    return value if type(value) is str else str.__str__(value)


def _json(key: str, value: Any, limit: int) -> str:
    try:
        return encode(value, limit=limit, what=key)
    except NotJSON as error:
        raise InvalidJob(str(error)) from None


def _headers(value: Any, limit: int) -> str | None:
    if not isinstance(value, Mapping):
        _wrong("headers", "a mapping", value)
    return _json("headers", dict(value), limit) if value else None


def _whole(key: str, value: Any, minimum: int, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        _wrong(key, f"a whole number from {minimum} to {maximum}", value)
    return value if type(value) is int else int.__int__(value)


def _seconds(key: str, value: Any) -> float:
    try:
        return parse_duration(value, zero=True)
    except (TypeError, ValueError) as error:
        raise InvalidJob(f"{key}: {error}") from None


def _timeout(value: Any) -> float:
    """Seconds; 0 is no limit."""
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
