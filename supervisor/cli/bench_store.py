"""The store that `supervisor bench` works in: its own, on the disk of the configured one, and gone afterwards."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from supervisor.cli.context import store_file
from supervisor.config import Settings
from supervisor.stores.base import StoreError

PREFIX = "supervisor-bench-"


@contextmanager
def own_store(settings: Settings) -> Iterator[tuple[Settings, Path]]:
    """The settings with a store that isn't there yet, and the folder for it. Raises StoreError if none can be made."""
    file = store_file(settings)
    if settings.store.scheme == "memory":
        raise StoreError("store: memory:// lives inside one process, so nothing else can enqueue and be measured")
    if file is None:
        raise StoreError(f"store: {settings.store.shown}: bench can make a store of its own only for SQLite")
    with _own_folder(file.resolve().parent) as folder:  # behind a link, too, the disk is that of the file
        store = settings.store.model_copy(update={"url": f"sqlite:///{folder / 'jobs.db'}"})
        yield settings.model_copy(update={"store": store}), folder


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
