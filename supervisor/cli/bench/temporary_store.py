"""The store of `supervisor bench`: beside the configured one, and removed afterwards."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.config.settings import Settings
from supervisor.errors import StoreError, Unsupported
from supervisor.stores.opening import scratch_schema_of

PREFIX = "supervisor-bench-"
FOLDER_NAME = re.compile(f"{PREFIX}[0-9a-f]{{16}}")
SCHEMA_PREFIX = "supervisor_bench_"
TEMPORARY = Path(os.environ.get("TMPDIR") or "/tmp")


class TemporaryStore(NamedTuple):
    """Settings with a store that doesn't exist yet, and a folder. `description` of the store, and `synchronous`, the mode of its
    commits, are for people."""

    settings: Settings
    folder: Path
    description: str
    synchronous: str


@contextmanager
def temporary_store(settings: Settings) -> Iterator[TemporaryStore]:
    """Yield a temporary store. Raises StoreError if there can't be one beside the configured store."""
    store = settings.store
    if store.scheme == "memory":
        raise StoreError("store: memory:// exists in one process only, so no other process can enqueue there")
    if (file := settings.store_file) is not None:
        with _temporary_folder(file.resolve().parent) as folder:  # on the disk of the file, also if the path is a link
            changed = _with_store(settings, url=f"sqlite:///{folder / 'jobs.db'}")
            synchronous = store.options.get("synchronous", "full")
            yield TemporaryStore(changed, folder, f"a SQLite store beside {store.shown}", synchronous)
    elif store.scheme in ("postgresql", "postgres"):
        with scratch_schema_of(store, SCHEMA_PREFIX) as scratch, _temporary_folder(TEMPORARY) as folder:
            changed = _with_store(settings, options={**store.options, "schema": scratch.schema})
            description = f"a schema of its own in {store.shown}"
            yield TemporaryStore(changed, folder, description, scratch.synchronous_commit)
    else:
        raise Unsupported(
            "have a temporary one beside it", f"bench is only for SQLite and PostgreSQL, and this is {store.shown}"
        )


def _with_store(settings: Settings, **changed: Any) -> Settings:
    return settings.replace(store=settings.store.replace(**changed))


@contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    _remove_abandoned(parent)
    folder = parent / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        folder.mkdir(mode=0o700)
        lock = _lock(folder)
    except OSError as error:
        raise StoreError(f"store: {parent}: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of benchmarks that were killed: no process holds their lock."""
    for folder in parent.glob(f"{PREFIX}*"):
        if not FOLDER_NAME.fullmatch(folder.name):
            continue
        with suppress(OSError):
            lock = _lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int:
    """Return a descriptor whose lock lasts until no process has it open. Raises OSError if another process holds one."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd
