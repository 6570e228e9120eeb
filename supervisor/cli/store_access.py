"""The store of the configuration, as commands use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from supervisor.cli.context import current_context
from supervisor.config.settings import Settings
from supervisor.errors import StoreError
from supervisor.stores.opening import BUILT_IN, attempts_while_unavailable, open_store

if TYPE_CHECKING:
    from supervisor.stores.protocol import Store

Result = TypeVar("Result")


def use_store(settings: Settings, use: Callable[[Store], Result], *, create: bool = False) -> Result:
    """Return what `use` returns for the store."""
    with opened_store(settings, create=create) as store:
        return once_available(lambda: use(store))


@contextmanager
def opened_store(settings: Settings, *, create: bool = False) -> Iterator[Store]:
    """Open the store, and close it at the end. Raises StoreError, also for a SQLite file that doesn't exist unless `create`."""
    if settings.store.scheme == "memory":
        raise StoreError("store: memory:// exists in one process only, so no other command can see its jobs")
    file = settings.store_file
    if file is not None and not create and is_absent(file):
        raise StoreError(f"no store yet: {file} does not exist; supervisor enqueue and supervisor run create it")
    openers = {} if settings.store.scheme in BUILT_IN else _plugin_openers(settings)
    store = once_available(lambda: open_store(settings.store, create=create, base=settings.base, openers=openers))
    try:
        yield store
    finally:
        store.close()


def once_available(call: Callable[[], Result]) -> Result:
    """Return the result of the call. While the store is unavailable, it is tried again for the timeout of the context."""
    for attempt in attempts_while_unavailable(current_context().store_timeout):
        with attempt:
            result = call()
    return result


def is_absent(file: Path) -> bool:
    """Return whether the file doesn't exist. False if that can't be found out: an attempt to open it then gives the reason."""
    try:
        return not file.exists()
    except OSError:
        return False


def private_files(settings: Settings) -> list[Path]:
    """Return the files that payloads are written to."""
    dead_letters = [sink.options.get("path") for sink in settings.dlq.sinks if sink.type == "file"]
    files = [settings.store_file, *(Path(text) for text in dead_letters if isinstance(text, str))]
    return [file for file in files if file]


def _plugin_openers(settings: Settings) -> Mapping[str, Any]:
    from supervisor.cli.plugin_scan import load_hooks, scan

    return load_hooks(settings, scan(settings), frozenset({"supervisor_stores"})).merged("supervisor_stores")
