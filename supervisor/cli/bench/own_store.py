"""The store that `supervisor bench` works in: its own, beside the configured one, and gone afterwards."""

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

from supervisor.cli.context import store_file
from supervisor.config.settings import Settings
from supervisor.errors import StoreError
from supervisor.stores.opening import scratch_schema_of

PREFIX = "supervisor-bench-"
LEFT_BEHIND = re.compile(f"{PREFIX}[0-9a-f]{{16}}")
SCHEMA_PREFIX = "supervisor_bench_"
TEMPORARY = Path(os.environ.get("TMPDIR") or "/tmp")


class OwnStore(NamedTuple):
    """Settings with a store that isn't there yet, a folder, and for people: where the store will be, and what its commits wait
    for."""

    settings: Settings
    folder: Path
    place: str
    synchronous: str


@contextmanager
def own_store(settings: Settings) -> Iterator[OwnStore]:
    """Raises StoreError if none can be made."""
    store = settings.store
    if store.scheme == "memory":
        raise StoreError("store: memory:// lives inside one process, so nothing else can enqueue and be measured")
    if (file := store_file(settings)) is not None:
        with _own_folder(file.resolve().parent) as folder:  # behind a link, too, the disk is that of the file
            synchronous = store.options.get("synchronous", "full")
            own = _with_store(settings, url=f"sqlite:///{folder / 'jobs.db'}")
            yield OwnStore(own, folder, f"a SQLite store beside {store.shown}", synchronous)
    elif store.scheme in ("postgresql", "postgres"):
        with scratch_schema_of(store, SCHEMA_PREFIX) as scratch, _own_folder(TEMPORARY) as folder:
            own = _with_store(settings, options={**store.options, "schema": scratch.schema})
            yield OwnStore(own, folder, f"a schema of its own in {store.shown}", scratch.synchronous_commit)
    else:
        raise StoreError(f"store: {store.shown}: bench can make a store of its own only for SQLite and PostgreSQL")


def _with_store(settings: Settings, **changed: Any) -> Settings:
    return settings.replace(store=settings.store.replace(**changed))


@contextmanager
def _own_folder(beside: Path) -> Iterator[Path]:
    _remove_left_behind(beside)
    folder = beside / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        folder.mkdir(mode=0o700)
        in_use = _lock(folder)
    except OSError as error:
        raise StoreError(f"store: {beside}: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(in_use)


def _remove_left_behind(beside: Path) -> None:
    """By a benchmark that was killed: nobody holds its lock."""
    for folder in beside.glob(f"{PREFIX}*"):
        if not LEFT_BEHIND.fullmatch(folder.name):
            continue
        with suppress(OSError):
            in_use = _lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(in_use)


def _lock(folder: Path) -> int:
    """A descriptor whose lock lasts until no process has it open. Raises OSError if another holds one."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd
