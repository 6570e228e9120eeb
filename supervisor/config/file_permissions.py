"""Check that only root can change what root runs: the config, the plugins, the database of a SQLite store (its jobs name the
handlers that root calls), and every folder above them.

Only root needs these checks: code of an ordinary user can do no more than that user. Symbolic links are followed, and every
link and folder on the way is checked. Everything is checked before anything is read: a file that only root can change stays
so, unless root itself changes it meanwhile. Access control lists and installed packages are not checked.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import all_suffixes
from itertools import islice
from pathlib import Path

from supervisor.config.loading import find, load
from supervisor.config.settings import Settings, absolute, path_of
from supervisor.errors import ConfigError
from supervisor.text.os_errors import user_shown

VARIABLE = "SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS"

ROOT = 0
MAX_LINKS = 40
MAX_REPORTED = 10
MAX_LOOKED_AT = 20_000
MAX_FOUND = 100  # faults of plugins, after which the search ends
BESIDE_DATABASE = ("-wal", "-shm", "-journal", "-queue.lock", "-write.lock", ".notify")
CODE = frozenset(Path(f"x{suffix}").suffix for suffix in all_suffixes())

Look = Callable[[Path], os.stat_result]


def load_trusted(path: Path | None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings as `load` does. Raises ConfigError also if root must not rely on the config or its plugins."""
    errors = config_faults(path if path is not None else find(environ), environ)
    if errors:
        raise ConfigError(errors)
    settings = load(path, environ)
    require_trust(settings, environ)
    return settings


def require_trust(settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError if root must not rely on the config, the plugins or the store, with a line for each file."""
    errors = [
        *config_faults(settings.path, environ),
        *plugin_faults(settings, environ),
        *store_faults(settings, environ),
    ]
    if errors:
        raise ConfigError(errors, settings)


def config_faults(path: Path | None, environ: Mapping[str, str] = os.environ, look: Look = os.lstat) -> list[str]:
    """Return a line for each file or folder by which others can change the config."""
    if path is None or not _is_checked(environ):
        return []
    return _as_lines("config", dict(_faults(path, look)), f"set {VARIABLE}=1 in the environment")


def plugin_faults(settings: Settings, environ: Mapping[str, str] = os.environ, look: Look = os.lstat) -> list[str]:
    """Return a line for each file or folder by which others can change code of the plugins, or add code to it."""
    if settings.plugins.allow_writable_by_others or not _is_checked(environ):
        return []
    found: dict[Path, str] = {}
    for text in settings.plugins.paths:
        path = path_of(text, settings.base)
        for part in (path, *_importable(path)):
            found.update(_faults(part, look))
            if len(found) > MAX_FOUND:
                break
    return _as_lines("plugins", found, "set plugins.allow_writable_by_others: true")


def code_of_others(folder: Path, environ: Mapping[str, str] = os.environ, look: Look = os.lstat) -> str | None:
    """Return by which file or folder others can change what root imports from the folder, or add to it; None if they can't, or this
    is not root. A folder with more than MAX_LOOKED_AT folders and files with code, such as `/`, is not searched to its end."""
    if not _is_checked(environ):
        return None
    remedy = f"or set {VARIABLE}=1 in the environment"
    for _, fault in _faults(folder, look):
        return f"{fault}, {remedy}"
    for number, part in enumerate(islice(_importable(folder, named=True), MAX_LOOKED_AT + 1)):
        if number == MAX_LOOKED_AT:
            return f"{folder} has more than {number} folders and files with code: use a folder of its own, {remedy}"
        if below := _fault_below(part, look):
            return f"{below}, {remedy}"
    return None


def _fault_below(path: Path, look: Look) -> str | None:
    """As `_faults`, for a path below a folder that has none."""
    status = look(path)
    if stat.S_ISLNK(status.st_mode):
        return next((fault for _, fault in _faults(path, look)), None)
    return _fault(path, status, shared=False)


def store_faults(settings: Settings, environ: Mapping[str, str] = os.environ, look: Look = os.lstat) -> list[str]:
    """Return a line for each file or folder by which others can change the database of a SQLite store. Its folder is checked
    too, since SQLite applies the log files that it finds beside the database."""
    file = settings.store_file
    if file is None or settings.store.allow_writable_by_others or not _is_checked(environ):
        return []
    found = dict(_faults(file, look))
    with suppress(OSError):
        real = Path(os.path.realpath(file))
        found.update(_faults(real.parent, look))
        for file in (real.with_name(real.name + suffix) for suffix in BESIDE_DATABASE):
            if file.exists():
                found.update(_faults(file, look))
    return _as_lines("store", found, "set store.allow_writable_by_others: true")


def open_to_others(files: Iterable[Path]) -> list[str]:
    """Return a warning for each existing file that others may read or write. This may be intended, so nothing is changed."""
    found = []
    for path in files:
        with suppress(OSError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o077:
                found.append(f"{path} (mode {mode:04o}) is open to others: chmod go-rwx {shlex.quote(str(path))}")
    return found


def _as_lines(what: str, faults: Mapping[Path, str], remedy: str) -> list[str]:
    lines = [f"{what}: {fault}, or {remedy}" for fault in faults.values()]
    more = len(lines) - MAX_REPORTED
    return lines if more <= 0 else [*lines[:MAX_REPORTED], f"{what}: ... and {more} more"]


def _is_checked(environ: Mapping[str, str]) -> bool:
    allowed = environ.get(VARIABLE, "")
    if allowed not in ("", "0", "1"):
        raise ConfigError([f"environment variable {VARIABLE}: expected 1 or 0"])
    return os.geteuid() == ROOT and allowed != "1"


def _importable(path: Path, *, named: bool = False) -> Iterator[Path]:
    """Yield the folder of a plugin and what can be imported from it: every folder below, the files with code, and all files of
    packages. Each folder is yielded once. Links are followed, as imports do. If `named`, folders are left out whose names no `import`
    can have, such as `.venv`."""
    with suppress(OSError):
        if not path.exists():
            return
        folder = path if path.is_dir() and not _is_package(path) else path.parent
        ahead, seen = [(folder, False)], set()
        while ahead:
            here, in_package = ahead.pop()
            in_package = in_package or (here != folder and _is_package(here))
            key = (os.path.realpath(here), in_package)
            if key not in seen:
                seen.add(key)
                yield here
                for entry in _entries(here):
                    if _is_folder(entry):
                        if not named or entry.name.isidentifier():
                            ahead.append((entry, in_package))
                    elif in_package or entry.suffix in CODE:
                        yield entry


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _is_package(folder: Path) -> bool:
    with suppress(OSError):
        return (folder / "__init__.py").is_file()
    return False


def _is_folder(path: Path) -> bool:
    with suppress(OSError):
        return path.is_dir()
    return False


def _faults(path: Path, look: Look) -> Iterator[tuple[Path, str]]:
    """Yield the faults of `path` and of the folders and links above it. Others may not add files to the folder `path`; to a
    folder above it they may if it has the sticky bit, as /tmp has."""
    *above, last = _way_to(path, look)
    for position, status in above:
        if fault := _fault(position, status, shared=bool(status.st_mode & stat.S_ISVTX)):
            yield position, fault
    if fault := _fault(*last, shared=False):
        yield last[0], fault


def _way_to(path: Path, look: Look) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the folders and links on the way to `path`, then `path` itself; if one is missing, only those before it."""
    here = Path("/")
    yield here, look(here)
    ahead = list(reversed(absolute(path).parts[1:]))
    links = 0
    while ahead:
        step = here / ahead.pop()
        if step.name == "..":
            here = here.parent
            continue
        try:
            status = look(step)
        except OSError:
            return
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            here = step
            continue
        target = step.readlink()
        links += 1
        if links > MAX_LINKS:
            return
        here = Path("/") if target.is_absolute() else here
        ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _fault(path: Path, status: os.stat_result, *, shared: bool) -> str | None:
    """Return the fault of a file, link or folder, or None. In a `shared` folder, which has the sticky bit, users who may write
    can't change what belongs to root."""
    quoted = shlex.quote(str(path))
    if status.st_uid != ROOT:
        link = " -h" if stat.S_ISLNK(status.st_mode) else ""
        return (
            f"{path} belongs to {user_shown(status.st_uid)}, who can change what root runs: chown{link} root {quoted}"
        )
    if stat.S_ISLNK(status.st_mode) or shared:
        return None
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IWOTH:
        who = "everybody"
    elif mode & stat.S_IWGRP and status.st_gid != ROOT:
        who = f"group {status.st_gid}"
    else:
        return None
    remedy = "keep what root runs in a folder of its own" if mode & stat.S_ISVTX else f"chmod go-w {quoted}"
    return f"{path} (mode {mode:04o}) may be written by {who}, who can change what root runs: {remedy}"
