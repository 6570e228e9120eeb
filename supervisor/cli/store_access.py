"""The store of the configuration, as commands use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from supervisor.cli.context import UserMistake, code_of, current_context
from supervisor.cli.exit_codes import UNAVAILABLE
from supervisor.config.loading import without_config
from supervisor.config.settings import Settings, path_of
from supervisor.errors import StoreError, StoreMissing
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
    store = once_available(opener_of(settings, create=create))
    try:
        yield store
    finally:
        store.close()


def opener_of(settings: Settings, *, create: bool = False) -> Callable[[], Store]:
    """Return a function that opens the store, on any thread. It raises StoreMissing for a SQLite file that doesn't exist unless
    `create`."""
    if settings.store.scheme == "memory":
        raise StoreError("store: memory:// exists in one process only, so no other command can see its jobs")
    openers = {} if settings.store.scheme in BUILT_IN else _plugin_openers(settings)

    def opened() -> Store:
        file = settings.store_file
        if file is not None and not create and is_absent(file):
            if (wrong := _wrong_folder(settings)) is not None:
                raise StoreError(f"{wrong}: name the config with -c FILE, or change the folder")
            raise StoreMissing(f"no store yet: {file} does not exist; supervisor enqueue and supervisor run create it")
        return open_store(settings.store, create=create, base=settings.base, openers=openers)

    return opened


def once_available(call: Callable[[], Result]) -> Result:
    """Return the result of the call. While the store is unavailable, it is tried again for the timeout of the context."""
    for attempt in attempts_while_unavailable(current_context().store_timeout):
        with attempt:
            result = call()
    return result


def may_answer_later(error: StoreError) -> bool:
    """Return whether the store is only unavailable, or not made yet: nobody has made a mistake."""
    return isinstance(error, StoreMissing) or code_of(error) == UNAVAILABLE


def is_absent(file: Path) -> bool:
    """Return whether the file doesn't exist. False if that can't be found out: an attempt to open it then gives the reason."""
    try:
        return not file.exists()
    except OSError:
        return False


def refuse_wrong_folder(settings: Settings, result: str) -> None:
    """Raise UserMistake if nothing in the current folder shows that a supervisor runs there."""
    if (wrong := _wrong_folder(settings)) is not None:
        raise UserMistake(
            f"{wrong}: {result}; name the config with -c FILE, or write an empty supervisor.yaml if a new store is wanted here"
        )


def _wrong_folder(settings: Settings) -> str | None:
    """Return what the current folder lacks if it has no store, no config and no plugins."""
    if settings.path is not None or settings.store_file is None or not is_absent(settings.store_file):
        return None
    folders = [path_of(path, settings.base) for path in settings.plugins.paths]
    if not all(map(is_absent, folders)):
        return None
    return f"{without_config(settings)}; nor is there {settings.store_file.name} or a folder {folders[0].name}"


def private_files(settings: Settings) -> list[Path]:
    """Return the files that payloads are written to."""
    dead_letters = [sink.options.get("path") for sink in settings.dlq.sinks if sink.type == "file"]
    files = [settings.store_file, *(Path(text) for text in dead_letters if isinstance(text, str))]
    return [file for file in files if file]


def _plugin_openers(settings: Settings) -> Mapping[str, Any]:
    from supervisor.cli.plugin_scan import load_hooks, scan

    return load_hooks(settings, scan(settings), frozenset({"supervisor_stores"})).merged("supervisor_stores")
