"""The plugin files that have changed since the last reload, and since the start of the supervisor."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from supervisor.config.settings import Settings, path_of
from supervisor.hooks import PARENT_HOOKS
from supervisor.plugins.reports import SourceReport

MAX_FILES = 10_000
MAX_BYTES = 10_000_000

Digests = Mapping[str, bytes]
"""The digest of each file by its path."""


class PluginChanges(NamedTuple):
    files: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    """The names of handlers."""
    needs_restart: tuple[str, ...] = ()
    """Changed files with hooks that run in the supervisor, which has loaded them at its start."""


class PluginFiles:
    def __init__(self, at_start: Digests) -> None:
        self._at_start = self._latest = at_start
        self._parent_side: set[str] = set()

    def reloaded(
        self, digests: Digests, before: Sequence[SourceReport], reports: Sequence[SourceReport]
    ) -> PluginChanges:
        """Return the changes that a reload has found, of the files and of the reports about them."""
        self._parent_side |= {it.source for it in (*before, *reports) if PARENT_HOOKS.intersection(it.hooks)}
        files, self._latest = _differing(self._latest, digests), digests
        outdated = [file for file in _differing(self._at_start, digests) if self._is_parent_side(file)]
        old, new = _handlers(before), _handlers(reports)
        return PluginChanges(tuple(files), tuple(sorted(new - old)), tuple(sorted(old - new)), tuple(outdated))

    def _is_parent_side(self, file: str) -> bool:
        return any(file == source or file.startswith(f"{source}/") for source in self._parent_side)


def digests_of(settings: Settings) -> Digests:
    """Read all Python files of `plugins.paths`. A file that can't be read has no digest, nor has a pipe, whose reader would wait for a
    writer; a module that is installed has none."""
    found = {}
    for path in islice(_files(settings), MAX_FILES):
        with suppress(OSError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES:
                found[str(path)] = hashlib.sha256(path.read_bytes()).digest()
    return found


def _files(settings: Settings) -> Iterator[Path]:
    for text in settings.plugins.paths:
        path = path_of(text, settings.base)
        with suppress(OSError):
            yield from (
                sorted(islice(path.rglob("*.py"), MAX_FILES)) if path.is_dir() else [path] if path.is_file() else []
            )


def _differing(before: Digests, after: Digests) -> list[str]:
    return sorted(file for file in before.keys() | after.keys() if before.get(file) != after.get(file))


def _handlers(reports: Iterable[SourceReport]) -> set[str]:
    return {info.name for report in reports for info in report.handlers}
