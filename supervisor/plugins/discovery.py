"""Find plugins: directories, files, modules, entry points."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.config.file_permissions import code_of_others
from supervisor.config.settings import path_of
from supervisor.plugins.entry_points import installed_plugins

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_refused: dict[Path, str] = {}
"""The folders of configs that plugins must not import from, each with the reason."""


@dataclass(frozen=True, slots=True)
class Source:
    """A plugin to load, from a `path`, a dotted `module` or an `entry` point. `problem` is the error if that is not found."""

    name: str
    path: Path | None = None
    module: str | None = None
    entry: EntryPoint | None = None
    problem: str | None = None


def discover(paths: Sequence[str], base: Path) -> list[Source]:
    """Return the sources of `paths` (the entries of `plugins.paths`, relative to `base`), then those of installed packages.

    The sources of a directory are its files `*.py` and its packages, sorted, without names that begin with `_` or `.`. No
    file is returned twice. An entry that can't be found is a source too, so that loading it reports the problem.

    From now on, the sources can import what is in `base`.
    """
    _let_import_from(base.absolute())
    found: dict[str, Source] = {}
    for text in paths:
        for source in _find(text, base):
            found.setdefault(os.path.realpath(source.path) if source.path else source.name, source)
    installed = [Source(f"entry point {entry.name} ({entry.value})", entry=entry) for entry in installed_plugins()]
    return [*found.values(), *installed]


def files_of_plugins(paths: Sequence[str], base: Path) -> Iterator[Path]:
    """Yield the files of `paths` that `discover` finds, and all files of packages. Nothing is imported."""
    for text in paths:
        for source in _find(text, base):
            if source.path is not None:
                yield from source.path.parent.rglob("*.py") if source.path.name == "__init__.py" else (source.path,)


def _let_import_from(base: Path) -> None:
    """Let plugins import from the folder of the configuration, after the standard library and all that is installed; but not from one
    like /tmp, into which any user can put a module, nor, as root, from one with code that others can change. The current directory does not count: each start may have another one."""
    with suppress(OSError):
        if str(base) in sys.path:
            return
        is_shared = base.stat().st_mode & stat.S_ISVTX
        why = f"any user can put a module into {base}: use a folder of its own" if is_shared else code_of_others(base)
        if why is None:
            sys.path.append(str(base))
            _refused.pop(base, None)
        else:
            _refused[base] = why


def why_not_found(module: str) -> str | None:
    """Return why a module beside the config was not imported, or None if there is none of this name."""
    name = module.partition(".")[0]
    for base, why in _refused.items():
        for found in (base / f"{name}.py", base / name):
            if os.path.lexists(found):
                return f"{found} is not imported, since {why}"
    return None


def _find(text: str, base: Path) -> Iterable[Source]:
    path = path_of(text, base)
    try:
        if path.is_dir():
            return _in_directory(path)
    except OSError as error:
        return [_unseen(path, error)]
    if os.path.lexists(path):
        return [Source(str(path), path=path)]
    if all(part.isidentifier() for part in text.split(".")) and not text.endswith(".py"):
        return [
            Source(text, module=text, problem=f"there is no file or folder {path}, and no module {text!r} is installed")
        ]
    return [Source(str(path), problem=f"no such file or folder; plugins.paths has {text!r}")]


def _in_directory(folder: Path) -> list[Source]:
    if (folder / "__init__.py").is_file():
        return [Source(str(folder), path=folder / "__init__.py")]
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        return [Source(str(folder), problem=f"directory can't be read: {error.strerror}")]
    return [source for entry in entries if not entry.name.startswith(("_", ".")) for source in _of_entry(entry)]


def _of_entry(entry: Path) -> list[Source]:
    package = entry / "__init__.py"
    try:
        if (entry.suffix == ".py" and not entry.is_dir()) or package.is_file():
            return [Source(str(entry), path=entry if entry.suffix == ".py" else package)]
    except OSError as error:
        return [_unseen(entry, error)]
    return []


def _unseen(path: Path, error: OSError) -> Source:
    return Source(str(path), problem=f"can't be read: {error.strerror}")
