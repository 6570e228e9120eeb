"""Open a store by its URL. Built-in stores are registered by scheme, like those of plugins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from supervisor.config.contradictions import url_problem
from supervisor.config.settings import DEFAULT_STORE, StoreSettings
from supervisor.errors import StoreBroken, StoreError, StoreUnavailable
from supervisor.retry import GrowingDelay

if TYPE_CHECKING:
    from supervisor.stores.postgres.scratch_schema import ScratchSchema
    from supervisor.stores.postgres.transactional_enqueue import TransactionalEnqueue
    from supervisor.stores.protocol import Store


class Opener(Protocol):
    """A function that opens the store of `settings`; relative paths are relative to `base`. Without `create`, a store that
    doesn't exist is refused. Raises StoreError with a message for the user."""

    def __call__(self, settings: StoreSettings, *, create: bool, base: Path) -> Store: ...


_CONFIGS = (".yaml", ".yml")


def open_store(
    settings: StoreSettings, *, create: bool, base: Path, openers: Mapping[str, Opener] | None = None
) -> Store:
    """Open the store of `settings.scheme`; `openers` are those of plugins."""
    known = {**BUILT_IN, **(openers or {})}
    opener = known.get(settings.scheme)
    if opener is None:
        hint = "; a client reads a config if SUPERVISOR_CONFIG names it" if settings.scheme.endswith(_CONFIGS) else ""
        raise StoreError(
            f"store: {settings.scheme!r} is not a kind of store; expected one of {', '.join(sorted(known))}{hint}"
        )
    return opener(settings, create=create, base=base)


def settings_of(url: str) -> StoreSettings:
    """Return the settings of a store that no config describes. Raises StoreError if `url` is not printable text."""
    try:
        return StoreSettings(url=url)
    except ValueError:
        raise StoreError("store: expected a URL such as sqlite:///jobs.db, in printable characters") from None


def attempts_while_unavailable(timeout: float) -> Iterator[AbstractContextManager[None]]:
    """Yield attempts until one succeeds. Raise the error of one if it is StoreBroken, or if the next would be after `timeout`.

    for attempt in attempts_while_unavailable(timeout):
        with attempt:
            answer = use(store)
    """
    delays, deadline = GrowingDelay(0.01, 0.5), time.monotonic() + timeout
    succeeded = False

    @contextmanager
    def attempt() -> Iterator[None]:
        nonlocal succeeded
        try:
            yield
            succeeded = True
        except StoreUnavailable as error:
            delay = delays.next()
            if isinstance(error, StoreBroken) or time.monotonic() + delay > deadline:
                raise
            time.sleep(delay)

    while not succeeded:
        yield attempt()


def _open_sqlite(settings: StoreSettings, *, create: bool, base: Path) -> Store:
    from supervisor.stores.sqlite.store import SqliteStore

    url = settings.url or DEFAULT_STORE
    if problem := url_problem(url):
        raise StoreError(f"store: {problem}, got {url!r}")
    path = base / url.removeprefix("sqlite:///")  # `sqlite:///rel.db` is relative, `sqlite:////abs.db` absolute
    return SqliteStore(path, create=create, synchronous=settings.options.get("synchronous", "full"))


def _open_memory(settings: StoreSettings, *, create: bool, base: Path) -> Store:
    from supervisor.stores.memory.store import MemoryStore

    return MemoryStore()


def transactional_enqueue_of(
    settings: StoreSettings, ask: Callable[[Callable[[Store], Any]], Any]
) -> TransactionalEnqueue:
    """Return an object that enqueues inside transactions of callers, on their own connections to the store's database. When
    these commit, supervisors are notified. Its `enqueue` raises StoreError, before it does anything, for an unfit connection.

    `ask` calls its argument with the store itself: it is needed if a connection does not show whether it leads to that store.
    """
    if not is_postgres(settings):
        raise StoreError(
            f"connection: only a PostgreSQL store takes jobs inside other transactions; this is {settings.shown}"
        )
    with _needing_psycopg():
        from supervisor.stores.postgres.transactional_enqueue import TransactionalEnqueue
    schema = settings.options.get("schema", "supervisor")
    return TransactionalEnqueue(settings.url or "", schema, lambda: ask(lambda store: store.database()))  # type: ignore[attr-defined]


def is_postgres(settings: StoreSettings) -> bool:
    return BUILT_IN.get(settings.scheme) is _open_postgres


def scratch_schema_of(settings: StoreSettings, prefix: str) -> AbstractContextManager[ScratchSchema]:
    """Return a context manager that makes a temporary schema beside that of a PostgreSQL store."""
    with _needing_psycopg():
        from supervisor.stores.postgres.scratch_schema import scratch_schema
    return scratch_schema(settings.url or "", listen=settings.options.get("listen", True), prefix=prefix)


def _open_postgres(settings: StoreSettings, *, create: bool, base: Path) -> Store:
    if problem := url_problem(settings.url or ""):
        raise StoreError(f"store: {problem}")
    with _needing_psycopg():
        from supervisor.stores.postgres.store import PostgresStore
    schema, listen = settings.options.get("schema", "supervisor"), settings.options.get("listen", True)
    return PostgresStore(settings.url or "", schema=schema, listen=listen, create=create)


@contextmanager
def _needing_psycopg() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise StoreError(f"store: PostgreSQL needs psycopg: pip install 'job-supervisor[postgres]' ({error})") from None


def _open_kafka(settings: StoreSettings, *, create: bool, base: Path) -> Store:
    from supervisor.kafka.client import require

    if settings.kafka is None:
        raise StoreError("store: expected a mapping with type: kafka, bootstrap, group and topics")
    require()
    from supervisor.stores.kafka.client_check import require_settings
    from supervisor.stores.kafka.store import KafkaStore

    require_settings(settings.kafka)
    return KafkaStore(settings.kafka)


BUILT_IN: Mapping[str, Opener] = {
    "sqlite": _open_sqlite,
    "memory": _open_memory,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
    "kafka": _open_kafka,
}

IN_ONE_PROCESS = frozenset({"memory", "kafka"})
"""The stores whose jobs only the process that has opened them can see."""
