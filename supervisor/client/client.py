"""The Client, which enqueues jobs from any program."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from supervisor.client import replacement, tracing
from supervisor.client.by_filter import ChangesJobs
from supervisor.client.ended_jobs import Wait, ended_jobs, value_of
from supervisor.client.new_jobs import AnyJob, Options, batch_of, checked, enqueue_row
from supervisor.client.store_access import StoreAccess
from supervisor.client.workflow import Batch, ClientWorkflow, batch_with, counts_of, with_callbacks
from supervisor.config.loading import load
from supervisor.config.settings import Settings
from supervisor.errors import ConfigError, StoreError
from supervisor.jobs import Job
from supervisor.stores.opening import attempts_while_unavailable, settings_of, transactional_enqueue_of
from supervisor.stores.records import EnqueueBatch, EnqueueRow

if TYPE_CHECKING:
    from supervisor.stores.postgres.transactional_enqueue import TransactionalEnqueue
    from supervisor.stores.protocol import Store

Answer = TypeVar("Answer")
Id = TypeVar("Id")
P = ParamSpec("P")


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

    def workflow(self, *, connection: Any = None) -> ClientWorkflow:
        """Return a workflow to add jobs to, which wait for each other: they are enqueued at the end of its `with` block, all or none.
        `connection` is as in `enqueue`.

            with jobs.workflow() as flow:
                parts = [flow.add("fetch", {"part": part}) for part in range(3)]
                flow.add("merge", after=parts)
        """
        return ClientWorkflow(self._settings, lambda batch: self._enqueue(batch, connection))

    def enqueue_batch(
        self, jobs: Iterable[AnyJob], *, on_success: str | AnyJob | None = None,
        on_finished: str | AnyJob | None = None, connection: Any = None,
    ) -> Batch:  # fmt: skip
        """Enqueue jobs as `enqueue_many` does, and with them a job that runs once all have succeeded (`on_success`; it is cancelled if
        one fails), and a job that runs once all have ended (`on_finished`). These are jobs as those in `jobs`, or the name of a
        handler. Return the ids."""
        batch = with_callbacks(self._settings, jobs, on_success, on_finished)
        return batch_with(self._enqueue(batch, connection), on_success, on_finished)

    def counts(self, ids: Iterable[int]) -> dict[str, int]:
        """Return how many of these jobs are in each state, by its name; jobs that are not in the store any more are "deleted"."""
        wanted = list(ids)
        return self._ask(lambda store: counts_of(store, wanted))

    def job(self, id: int) -> dict[str, Any] | None:
        """Return the job as `supervisor jobs show --json` prints it, with `waiting_because`; None if there is none."""
        from supervisor.stores.waiting import with_reasons  # most programs only enqueue

        sinks = self._settings.dlq.names
        return self._ask(lambda store: next(with_reasons(store, filter(None, [store.get(id)]), sinks), None))

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
