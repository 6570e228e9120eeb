"""Stores by URL: `open_store`. Built-in ones are registered as any plugin's are, by scheme."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from supervisor.config.contradictions import url_problem
from supervisor.config.settings import StoreSettings
from supervisor.errors import StoreBroken, StoreError, StoreUnavailable
from supervisor.stores.protocol import Store, TransactionalEnqueue

if TYPE_CHECKING:
    from supervisor.stores.postgres.scratch_schema import ScratchSchema

__all__ = [
    "BUILT_IN",
    "Opener",
    "open_store",
    "retry_while_unavailable",
    "scratch_schema_of",
    "settings_of",
    "transactional_enqueue_of",
]

Answer = TypeVar("Answer")


class Opener(Protocol):
    """Opens the store that `settings` describe; relative paths start at `base`. Without `create`, one that isn't there is
    refused. Raises StoreError, whose message is for the user."""

    def __call__(self, settings: StoreSettings, *, create: bool, base: Path) -> Store: ...


def open_store(
    settings: StoreSettings, *, create: bool, base: Path, openers: Mapping[str, Opener] | None = None
) -> Store:
    """Open the store of `settings.scheme`; `openers` are those that plugins brought."""
    known = {**BUILT_IN, **(openers or {})}
    opener = known.get(settings.scheme)
    if opener is None:
        raise StoreError(
            f"store: {settings.scheme!r} is not a kind of store; expected one of {', '.join(sorted(known))}"
        )
    return opener(settings, create=create, base=base)


def settings_of(url: str) -> StoreSettings:
    """Of a store that no config describes. Raises StoreError if it can't be a URL."""
    try:
        return StoreSettings(url=url)
    except ValueError:
        raise StoreError("store: expected a URL such as sqlite:///jobs.db, in printable characters") from None


def retry_while_unavailable(call: Callable[[], Answer], timeout: float) -> Answer:
    """Call again while the store is away or busy, for up to `patience` seconds."""
    deadline = time.monotonic() + timeout
    nap = 0.01
    while True:
        try:
            return call()
        except StoreBroken:
            raise
        except StoreUnavailable:
            if time.monotonic() + nap > deadline:
                raise
        time.sleep(nap)
        nap = min(nap * 2, 0.5)


def _open_sqlite(settings: StoreSettings, *, create: bool, base: Path) -> Store:
    from supervisor.stores.sqlite.store import SqliteStore

    path = base / _path_of(settings.url or "sqlite:///jobs.db")
    return SqliteStore(path, create=create, synchronous=settings.options.get("synchronous", "full"))


def _open_memory(settings: StoreSettings, *, create: bool, base: Path) -> Store:
    from supervisor.stores.memory.store import MemoryStore

    return MemoryStore()


def transactional_enqueue_of(
    settings: StoreSettings, ask: Callable[[Callable[[Store], Any]], Any]
) -> TransactionalEnqueue:
    """`ask` puts a question to the store itself, if there is no other way to tell that a connection leads to it."""
    if BUILT_IN.get(settings.scheme) is not _open_postgres:
        raise StoreError(
            f"connection: only a PostgreSQL store takes jobs inside other transactions; this is {settings.shown}"
        )
    try:
        from supervisor.stores.postgres.transactional_enqueue import TransactionalEnqueue
    except ImportError as error:
        raise _needs_psycopg(error) from None
    schema = settings.options.get("schema", "supervisor")
    return TransactionalEnqueue(settings.url or "", schema, lambda: ask(lambda store: store.database()))  # type: ignore[attr-defined]


def scratch_schema_of(settings: StoreSettings, prefix: str) -> AbstractContextManager[ScratchSchema]:
    """Beside the schema of a PostgreSQL store."""
    try:
        from supervisor.stores.postgres.scratch_schema import scratch_schema
    except ImportError as error:
        raise _needs_psycopg(error) from None
    return scratch_schema(settings.url or "", listen=settings.options.get("listen", True), prefix=prefix)


def _open_postgres(settings: StoreSettings, *, create: bool, base: Path) -> Store:
    try:
        from supervisor.stores.postgres.store import PostgresStore
    except ImportError as error:
        raise _needs_psycopg(error) from None
    schema, listen = settings.options.get("schema", "supervisor"), settings.options.get("listen", True)
    return PostgresStore(settings.url or "", schema=schema, listen=listen, create=create)


def _needs_psycopg(error: ImportError) -> StoreError:
    return StoreError(f"store: PostgreSQL needs psycopg: pip install 'job-supervisor[postgres]' ({error})")


def _path_of(url: str) -> str:
    """`sqlite:///rel.db` is relative, `sqlite:////abs.db` absolute, as elsewhere."""
    problem = url_problem(url)
    if problem:
        raise StoreError(f"store: {problem}, got {url!r}")
    return url.removeprefix("sqlite:///")


BUILT_IN: Mapping[str, Opener] = {
    "sqlite": _open_sqlite,
    "memory": _open_memory,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
}
