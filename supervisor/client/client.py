"""The Client, which enqueues jobs from any program, and the checks of new jobs: an error names the key and what was expected."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack, overload

from supervisor.client import replacement, tracing
from supervisor.client.by_filter import ChangesJobs
from supervisor.client.checked_extras import checked_extras
from supervisor.client.ended_jobs import Wait, ended_jobs, value_of
from supervisor.client.store_access import StoreAccess
from supervisor.config.loading import load
from supervisor.config.retries import BackoffSettings
from supervisor.config.settings import Settings
from supervisor.errors import ConfigError, InvalidJob, StoreError
from supervisor.jobs import MAX_RETRIES, Backoff, Job, NewJob
from supervisor.stores.extras import Extras
from supervisor.stores.opening import attempts_while_unavailable, settings_of, transactional_enqueue_of
from supervisor.stores.records import EnqueueBatch, EnqueueRow
from supervisor.text.names import NAME, did_you_mean_or_all, is_name
from supervisor.text.strict_json import MAX_INTEGER, NotJSON, encode
from supervisor.text.units import microseconds_of, parse_duration

if TYPE_CHECKING:
    from supervisor.stores.postgres.transactional_enqueue import TransactionalEnqueue
    from supervisor.stores.protocol import Store

Answer = TypeVar("Answer")
Id = TypeVar("Id")
P = ParamSpec("P")
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
    after: Sequence[int] | None
    on_parent_failed: str | None
    tags: Sequence[str] | None
    expires: float | str | None


class Enqueuer(ABC, Generic[Id]):
    """The call that enqueues one job. `Id` is int, or a coroutine that returns it."""

    _settings: Settings

    @abstractmethod
    def _enqueue_one(self, row: EnqueueRow, connection: Any) -> Id: ...

    @overload
    def enqueue(
        self, handler: str, payload: Any = None, *, connection: Any = None, **options: Unpack[Options]
    ) -> Id: ...
    @overload
    def enqueue(self, handler: Callable[[Job], Any], payload: Any = None, /) -> Id: ...
    @overload
    def enqueue(self, handler: Callable[Concatenate[Job, P], Any], /, *arguments: P.args, **named: P.kwargs) -> Id: ...
    @overload
    def enqueue(self, handler: Callable[P, Any], /, *arguments: P.args, **named: P.kwargs) -> Id: ...
    def enqueue(self, *arguments: Any, **named: Any) -> Id:  # type: ignore[misc]  # mypy wants the parameters of P by name
        """Enqueue a job. Return its id once it is durable or, with `connection`, once it is part of your own transaction.

        `handler` is a name, with the payload and options, or a function marked by @handler, with the arguments of its call; see
        `options` for the options of the latter. Arguments that do not fit raise TypeError, as the call would, or InvalidJob.

        `payload` and `headers` are JSON values. `delay` and `timeout` are seconds or text such as "10s" (`timeout` also
        "none"); `at` is an aware datetime or its ISO 8601 text. `max_retries`, `timeout` and `backoff` override every other
        setting for this job. `backoff` has the keys of `retry.backoff`; for a missing key it uses the default, not the config.

        `connection` is one to the database of a PostgreSQL store: a psycopg connection, a SQLAlchemy Connection or Session, or
        Django's. The job then exists if and when its transaction commits (in autocommit, at once). Nothing is tried again:
        errors of the database are raised as that library raises them; StoreError is raised if `connection` can't be used.
        """
        if arguments and callable(arguments[0]):
            return self.options().enqueue(*arguments, **named)
        connection = named.pop("connection", None)
        return self._enqueue_one(checked(self._settings, *arguments, **named), connection)

    def options(self, *, connection: Any = None, **options: Unpack[Options]) -> WithOptions[Id]:
        """Return an object whose `enqueue` gives a job these options. It takes functions, and names with a payload."""
        return WithOptions(self, connection, options)


class WithOptions(Generic[Id]):
    """Enqueues jobs that have the same options, apart from the arguments of their handlers."""

    def __init__(self, enqueuer: Enqueuer[Id], connection: Any, options: Mapping[str, Any]) -> None:
        self._enqueuer, self._connection, self._options = enqueuer, connection, options

    @overload
    def enqueue(self, handler: str | Callable[[Job], Any], payload: Any = None, /) -> Id: ...
    @overload
    def enqueue(self, handler: Callable[Concatenate[Job, P], Any], /, *arguments: P.args, **named: P.kwargs) -> Id: ...
    @overload
    def enqueue(self, handler: Callable[P, Any], /, *arguments: P.args, **named: P.kwargs) -> Id: ...
    def enqueue(self, handler: Any, /, *arguments: Any, **named: Any) -> Id:
        """Enqueue a job as `Client.enqueue` does, by name or by function."""
        if not callable(handler):
            return self._enqueuer.enqueue(handler, *arguments, connection=self._connection, **self._options, **named)
        from supervisor.client.by_function import job_of

        settings = self._enqueuer._settings
        job = job_of(settings, handler, arguments, named)
        return self._enqueuer._enqueue_one(enqueue_row(settings, {**job, **self._options}), self._connection)


class Client(Enqueuer[int], ChangesJobs):
    """A connection to the store of `url`, of given Settings, or of the configuration that the command line would find.

    It connects on first use in a process, and again after a fork: in the child, and to a SQLite file in the parent too. It is
    thread-safe; a call that interrupts another on the same thread (in a signal handler, for example) may raise StoreError. A
    SQLite file that doesn't exist is refused unless `create` is true. While the store is unavailable or locked, or other
    threads use the client, calls are repeated for `timeout` seconds before they raise StoreUnavailable. They block the thread: in
    an event loop, use AsyncClient. Methods raise StoreError,
    and `supervisor.client.InvalidJob` (a ValueError) for jobs that can't be enqueued.
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

    def _enqueue_one(self, row: EnqueueRow, connection: Any) -> int:
        return self._enqueue(EnqueueBatch([row]), connection)[0]

    def enqueue_many(self, jobs: Iterable[AnyJob], *, connection: Any = None) -> list[int]:
        """Enqueue jobs. Return their ids in order once all are durable; if one is refused, none is enqueued.

        A job is a NewJob, a mapping with the arguments of `enqueue` by name, or (handler, payload). `connection` is as in
        `enqueue`.
        """
        return self._enqueue(batch_of(self._settings, jobs), connection)

    def job(self, id: int) -> dict[str, Any] | None:
        """Return the job as `supervisor jobs show --json` prints it; None if there is none."""
        return self._ask(lambda store: store.get(id))

    def cancel(self, id: int) -> bool:
        """Cancel the job, and return whether this call did it: a job that has ended is not changed. The worker of a running job
        is killed. If the store was unavailable for a moment, this may return False although it has cancelled the job; if that
        matters, ask `job` for its state."""
        cancelled, _ = self._ask(lambda store: store.cancel([id]))
        return bool(cancelled)

    def result(self, id: int, timeout: float | str | None = None) -> Any:
        """Wait until the job has ended, and return its result.

        Raises JobFailed if it has failed for good or was cancelled, JobNotFound if there is none, and TimeoutError after `timeout`
        (seconds, or text such as "10s"; by default there is no limit): the job is not changed by that. The end is noticed after 10
        to 250 milliseconds, the sooner the shorter the wait. Other threads can use the client meanwhile. StoreUnavailable is raised
        if the store is unavailable for the `timeout` of the client.
        """
        ((_, outcome),) = self.results([id], timeout)
        return value_of(outcome)

    def results(self, ids: Iterable[int], timeout: float | str | None = None) -> Iterator[tuple[int, Any]]:
        """Yield (id, result) of each job once it has ended, in any order, each id once.

        It raises no error for a job that failed, was cancelled or does not exist: its result is a JobFailed or JobNotFound. Raises
        TimeoutError when `timeout`, counted from this call, is over and some have not ended; those that have ended are yielded first.
        """
        wait = Wait(ids, timeout, self._access.timeout, time.monotonic())
        ask = partial(self._ask_once, wait.deadline)
        if (replaced := replacement.current()) is not None:
            replaced.waiting(wait.ids, wait.timeout)
        return ((ended.id, ended.outcome) for ended in ended_jobs(ask, wait))

    def close(self) -> None:
        """Disconnect; the next use connects again."""
        self._access.close()

    def _enqueue(self, batch: EnqueueBatch, connection: Any) -> list[int]:
        if tracing.sender is not None:
            return tracing.sender.send(batch, lambda traced: self._enqueue_batch(traced, connection))
        return self._enqueue_batch(batch, connection)

    def _enqueue_batch(self, batch: EnqueueBatch, connection: Any) -> list[int]:
        """Enqueue the batch. All attempts pass the same object, so that the store recognizes rows that it has committed."""
        if connection is not None:
            if self._transactional_enqueue is None:
                self._transactional_enqueue = transactional_enqueue_of(self._settings.store, self._ask)
            if replacement.current() is None:
                return self._transactional_enqueue.enqueue(connection, batch)
        return self._ask(lambda store: store.enqueue(batch))

    def _ask_once(self, until: float, question: Callable[[Store], Answer]) -> Answer:
        """Ask without another try. Other threads are waited for until then, or for a moment."""
        with self._access.use(self._access.deadline(until - time.monotonic())) as store:
            return question(store)

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
    handler, limit = _name("handler", handler), settings.limits.payload
    row = (
        handler,
        _json("payload", payload, limit),
        _name("queue", settings.queue_for(handler) if queue is None else queue),
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
    """Return seconds; 0 is no limit."""
    return 0.0 if isinstance(value, str) and value == "none" else _seconds("timeout", value)


def _moment(value: Any) -> int:
    """Return the microseconds since the epoch of an aware datetime, or of its ISO 8601 text."""
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            _wrong("at", "a time such as 2030-01-31T09:30:00+01:00", value)
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        _wrong("at", "a time with a time zone, such as 2030-01-31T09:30:00+01:00", value)
    return microseconds_of(moment)


def _backoff(value: Any) -> Backoff:
    if isinstance(value, Backoff):
        value = value._asdict()
    if not isinstance(value, Mapping):
        _wrong("backoff", "a mapping with base, factor, max, jitter, exponential", value)
    try:
        return BackoffSettings(**{str(key): part for key, part in value.items()}).curve
    except ValueError as error:
        raise InvalidJob(f"backoff.{error}") from None
