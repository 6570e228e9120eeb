"""Client: enqueue jobs from any program."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakSet

from supervisor.client.validation import batch_of, checked
from supervisor.config.file_permissions import require_trust
from supervisor.config.loading import load
from supervisor.config.settings import Settings
from supervisor.errors import ConfigError, InvalidJob, StoreError, StoreUnavailable
from supervisor.jobs import Backoff, NewJob
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.stores.opening import (
    BUILT_IN,
    attempts_while_unavailable,
    open_store,
    settings_of,
    transactional_enqueue_of,
)
from supervisor.stores.protocol import Store, TransactionalEnqueue
from supervisor.stores.records import EnqueueBatch

__all__ = ["Client", "InvalidJob"]

Answer = TypeVar("Answer")

_TURN = 1.0  # seconds to wait for other threads at least, however short the patience: as a try waits for other programs

# A store inherited by fork is kept here for ever: closing it, even by garbage collection, would touch the parent's.
_inherited: list[Store] = []
_clients: WeakSet[Client] = WeakSet()
_registry = threading.RLock()


def _before_fork_all() -> None:
    _registry.acquire()
    for client in _clients:
        client._before_fork()


def _after_fork_in_parent_all() -> None:
    for client in _clients:
        client._after_fork_in_parent()
    _registry.release()


def _after_fork_in_child_all() -> None:
    for client in _clients:
        client._after_fork_in_child()
    _registry.release()


os.register_at_fork(
    before=_before_fork_all, after_in_parent=_after_fork_in_parent_all, after_in_child=_after_fork_in_child_all
)


class Client:
    """Enqueues into the store of `url`, of given Settings, or of the configuration that the command line would find.

    Connects on first use in a process, and again after a fork: in the child, and to a SQLite file in the parent too.
    Thread-safe; a call that interrupts another on the same thread (from a signal handler, say) may be refused with StoreError.
    A SQLite file that doesn't exist is refused unless `create`. While the store is away or locked, or other threads use the
    client, calls are tried again for `patience` seconds before they raise StoreUnavailable. Raises StoreError, and
    `supervisor.client.InvalidJob` (a ValueError) for jobs that can't be enqueued.
    """

    def __init__(self, url: str | Settings | None = None, *, create: bool = False, timeout: float = 30.0) -> None:
        self._settings = _settings(url)
        self._create, self._timeout = create, timeout
        self._opened: Store | None = None
        self._transactional_enqueue: TransactionalEnqueue | None = None
        self._using = threading.RLock()  # around each try, so that neither a fork nor another thread waits for the next
        self._trying = False
        self._unavailable = ""  # what the last try met, if it did not find the store
        self._closed_in_forks = self._settings.store.scheme == "sqlite"
        self._cut_off = False
        with _registry:
            _clients.add(self)

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
        """The id of the job, once it is durable; with `connection`, as soon as your own transaction there holds it.

        `payload` and `headers` are JSON values. `delay` and `timeout` are seconds or text such as "10s" (`timeout` also
        "none"); `at` is an aware datetime or its ISO 8601 text. `max_retries`, `timeout` and `backoff` (keys as in
        `retry.backoff`; what it leaves out has its default, whatever the config says) override every other setting for this
        job.

        `connection` leads to the database of a PostgreSQL store: a psycopg connection, a SQLAlchemy Connection or Session, or
        Django's. The job then exists if and when its transaction commits (in autocommit, at once). Nothing is tried again:
        errors of the database are raised as that library raises them, and what it is not fit for as StoreError.
        """
        settings = self._settings
        row = checked(
            handler, payload, queue, priority, delay, at, max_retries, timeout, backoff, headers,
            limit=settings.limits.payload, queue_for=settings.queue_for,
        )  # fmt: skip
        return self._enqueue(EnqueueBatch([row]), connection)[0]

    def enqueue_many(
        self, jobs: Iterable[NewJob | Mapping[str, Any] | tuple[str, Any]], *, connection: Any = None
    ) -> list[int]:
        """The ids in order, once all jobs are durable; if any is refused, none is enqueued.

        A job is a NewJob, a mapping with the arguments of `enqueue` by name, or (handler, payload). `connection` is as there.
        """
        limit, queue_for = self._settings.limits.payload, self._settings.queue_for
        return self._enqueue(batch_of(jobs, limit=limit, queue_for=queue_for), connection)

    def job(self, id: int) -> dict[str, Any] | None:
        """The job as `supervisor jobs show --json` prints it; None if there is none."""
        return self._ask(lambda store: store.get(id))

    def cancel(self, id: int) -> bool:
        """Whether this cancelled the job: it had not finished. If it is running, its worker is killed. Where the store was
        away for a moment it may be False though it did, so if that matters, ask `job` for its state."""
        cancelled, _ = self._ask(lambda store: store.cancel([id]))
        return bool(cancelled)

    def close(self) -> None:
        """Disconnect; the next use connects again."""
        with self._using:
            self._refuse_interrupting()
            self._disconnect()

    def _disconnect(self) -> None:
        store, self._opened = self._opened, None
        if store is not None:
            store.close()

    def _before_fork(self) -> None:
        """Before a fork. SQLite's locks are the process's, and what it notes of them in memory a child believes of itself: it
        would write to a log that others, who see no lock, have removed, and its jobs would be gone. So nothing is open then."""
        if self._closed_in_forks:
            self._using.acquire()
            if not self._trying:
                with suppress(StoreError):
                    self._disconnect()

    def _after_fork_in_parent(self) -> None:
        if self._closed_in_forks:
            self._using.release()

    def _after_fork_in_child(self) -> None:
        """In a forked child: the parent's connection stays the parent's, and another thread may hold the lock for ever."""
        self._using, self._trying = threading.RLock(), False
        if self._opened is not None:
            _inherited.append(self._opened)
            self._opened = None
            self._cut_off = self._closed_in_forks  # by a signal handler, in the middle of a try

    def _enqueue(self, rows: EnqueueBatch, connection: Any) -> list[int]:
        """The same `rows` at every try, by which the store knows a try whose commit it was not sure of."""
        if connection is not None:
            return self._transactional().enqueue(connection, rows)
        return self._ask(lambda store: store.enqueue(rows))

    def _ask(self, question: Callable[[Store], Answer]) -> Answer:
        deadline = time.monotonic() + max(self._timeout, _TURN)
        for attempt in attempts_while_unavailable(self._timeout):
            with attempt:
                answer = self._try(question, deadline)
        return answer

    def _try(self, use: Callable[[Store], Answer], deadline: float) -> Answer:
        using = self._using  # in a child that is forked meanwhile there is another
        if not using.acquire(timeout=min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)):
            raise StoreUnavailable(
                f"{self._settings.store.shown}: other threads kept the client busy for too long{self._unavailable}"
            )
        try:
            self._refuse_interrupting()
            self._trying = True
            try:
                answer = use(self._store())
                self._unavailable = ""
                return answer
            except StoreUnavailable as error:
                self._unavailable = f"; the last of them: {error}"
                raise
            finally:
                self._trying = False
        finally:
            using.release()

    def _refuse_interrupting(self) -> None:
        """Whoever has the lock and finds a try under way is in the middle of it."""
        if self._trying:
            raise StoreError(
                f"{self._settings.store.shown}: this call interrupted another of the same client on the same thread, as a "
                "signal handler, a logging handler or __del__ may: nothing was done; call again once that one has returned"
            )

    def _transactional(self) -> TransactionalEnqueue:
        if self._transactional_enqueue is None:
            self._transactional_enqueue = transactional_enqueue_of(self._settings.store, self._ask)
        return self._transactional_enqueue

    def _store(self) -> Store:
        if self._cut_off:
            raise StoreError(
                f"{self._settings.store.shown}: this process was forked while the thread that forked it was using the client: "
                "SQLite can't be used in it any more"
            )
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> Store:
        settings = self._settings
        if settings.store.scheme == "memory":
            raise StoreError(
                "store: memory:// lives inside one process, so no supervisor would see the jobs of a Client"
            )
        openers = {} if settings.store.scheme in BUILT_IN else _plugin_openers(settings)
        return open_store(settings.store, create=self._create, base=settings.base, openers=openers)


def _plugin_openers(settings: Settings) -> Mapping[str, Any]:
    require_trust(settings)
    manager = PluginManager()
    manager.load_all(discover(settings.plugins.paths, settings.base))
    return manager.merged("supervisor_stores")


def _settings(url: str | Settings | None) -> Settings:
    if url is None:
        return load(None)
    if isinstance(url, Settings):
        return url
    try:
        return Settings(store=settings_of(url))
    except ConfigError as error:
        raise StoreError(str(error)) from None
