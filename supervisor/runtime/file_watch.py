"""Watch the config and the code of plugins, for `supervisor run --reload`. It needs the package watchfiles, and is not for production."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import NamedTuple

from supervisor.config.settings import Settings, path_of
from supervisor.errors import ConfigError
from supervisor.plugins.discovery import discover
from supervisor.threads import start_thread

NOT_INSTALLED = "run --reload needs watchfiles: pip install 'job-supervisor[dev]' ({})"
QUIET_MS = 100  # without a change, before a reload: programs save a file in several steps, and several files at once
MAX_DELAY_MS = 2000
LOOK_MS = 1000
END_TIMEOUT = 2.0  # seconds; a watch ends within QUIET_MS
INSTALLED = {"site-packages", "dist-packages"}


class Watched(NamedTuple):
    """The paths that are watched: folders with all that is below them (`trees`), `folders` alone, each with its inode, since another folder may
    take its place; and `files`, and those folders in which all code counts."""

    trees: Mapping[str, int]
    folders: Mapping[str, int]
    files: frozenset[str]
    code_folders: frozenset[str]

    def counts(self, path: str, *, is_modified: bool) -> bool:
        """Return whether a reload may read something else after a change of this path."""
        folder, name = os.path.split(path)
        if path in self.files:
            return True
        if folder in self.code_folders:
            return _is_code(name)
        for tree in self.trees:
            if path.startswith(f"{tree}/"):
                *folders, name = path[len(tree) + 1 :].split("/")
                # The name of a folder is enough: if a package is renamed, its files are not named.
                return all(map(str.isidentifier, folders)) and (
                    _is_code(name) or (not is_modified and name.isidentifier() and name != "__pycache__")
                )
        return False


class FileWatch:
    """Calls `on_change` with the paths, in a thread, once files of `settings` have changed; with none if they may have changed while
    they were not watched. `on_error` gets the reason for which they can't be watched. Raises ConfigError without watchfiles."""

    def __init__(
        self, settings: Settings, on_change: Callable[[list[str]], None], on_error: Callable[[str], None]
    ) -> None:
        try:
            import watchfiles  # noqa: F401
        except ImportError as error:
            raise ConfigError([NOT_INSTALLED.format(error)]) from None
        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # a log in a watched folder would not end
        self._on_change, self._on_error = on_change, on_error
        self._watched = watched_by(settings)
        self._closed = False
        self._renewals = [Event(), Event()]
        self._threads = [
            start_thread(partial(self._run, renewal, recursive), "watch")
            for renewal, recursive in zip(self._renewals, (True, False), strict=True)
        ]

    def follow(self, settings: Settings) -> None:
        """Watch the files of these settings, and folders that have been replaced."""
        watched = watched_by(settings)
        if watched != self._watched:
            self._watched = watched
            self._renew()

    def close(self) -> None:
        """End the threads: one that is in code of watchfiles when the interpreter ends could crash the process."""
        self._closed = True
        self._renew()
        for thread in self._threads:
            thread.join(END_TIMEOUT)

    def _renew(self) -> None:
        for renewal in self._renewals:
            renewal.set()

    def _run(self, renewal: Event, recursive: bool) -> None:
        is_first = True
        while not self._closed:
            watched = self._watched
            folders = watched.trees if recursive else watched.folders
            try:
                if folders:
                    self._watch(watched, folders, renewal, recursive, unseen=not is_first)
            except Exception as error:
                self._on_error(f"can't watch {', '.join(folders)}: {error}; send HUP after a change")
            is_first = False
            renewal.wait()
            renewal.clear()  # before the next look at what the renewal has changed

    def _watch(
        self, watched: Watched, folders: Iterable[str], renewal: Event, recursive: bool, *, unseen: bool
    ) -> None:
        """Watch until the renewal is requested. `unseen` is whether something may have changed before."""
        from watchfiles import Change, watch

        for changes in watch(
            *folders, watch_filter=None, stop_event=renewal, recursive=recursive, raise_interrupt=False, yield_on_timeout=True,
            debounce=MAX_DELAY_MS, step=QUIET_MS, rust_timeout=LOOK_MS,
        ):  # fmt: skip
            found = {path for kind, path in changes if watched.counts(path, is_modified=kind is Change.modified)}
            if found or unseen:
                self._on_change(sorted(found))
            unseen = False


def watched_by(settings: Settings) -> Watched:
    files, folders, code_folders, trees = set[Path](), set[Path](), set[Path](), set[Path]()
    if settings.path is not None:
        config = settings.path.absolute()
        files |= {config, config.resolve()}
    for text in settings.plugins.paths:
        path = path_of(text, settings.base)
        files.add(path)
        if path.is_dir():
            trees.add(path)
        elif path.is_file():
            code_folders |= {path.parent, path.resolve().parent}
    modules, base = [*_modules(settings)], settings.base.absolute()
    if str(base) in sys.path:  # plugins can import from there
        code_folders.add(base)
        trees |= {folder.parent for folder in base.glob("*/__init__.py")}
    for module in modules:
        place = _place_of(module)
        if place is not None and not INSTALLED.intersection(place.parts):
            (trees if place.is_dir() else files).add(place)
    folders = {file.parent for file in files} | code_folders
    in_trees = {folder for folder in folders if any(folder.is_relative_to(tree) for tree in trees)}
    return Watched(
        dict(_inodes(trees)),
        dict(_inodes(folders - in_trees)),
        frozenset(map(str, files)),
        frozenset(map(str, code_folders)),
    )


def _modules(settings: Settings) -> Iterator[str]:
    """Yield the modules and packages that are plugins. From then on, plugins can import from the folder of the config."""
    for source in discover(settings.plugins.paths, settings.base):
        name = source.module or (source.entry.module if source.entry else None)
        if name is not None:
            yield name.partition(".")[0]


def _place_of(module: str) -> Path | None:
    """Return the folder of a package, or the file of a module. Nothing is imported."""
    spec = None
    with suppress(Exception):  # finders may raise anything
        spec = importlib.util.find_spec(module)
    if spec is None or not spec.has_location or spec.origin is None:  # any folder on sys.path is a namespace package
        return None
    file = Path(spec.origin).absolute()
    return file.parent if spec.submodule_search_locations else file


def _inodes(folders: Iterable[Path]) -> Iterator[tuple[str, int]]:
    for folder in sorted(folders):
        with suppress(OSError):
            yield str(folder), folder.stat().st_ino


def _is_code(name: str) -> bool:
    return name.endswith(".py") and not name.startswith(".")
