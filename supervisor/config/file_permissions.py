"""Checks that nobody else can change the files that root runs: the config, the plugins, and every folder above them.

Only root needs them: an ordinary user's code can do no more than that user. Symbolic links are followed, and every link and
folder on the way counts. Everything is checked before anything is read: a file that only root can change stays so, unless root
itself changes it meanwhile. Access control lists are not checked, nor are installed packages.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from supervisor.config.loading import find, load
from supervisor.config.settings import Settings, absolute, path_of
from supervisor.errors import ConfigError

VARIABLE = "SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS"
KEY = "plugins.allow_writable_by_others"

ROOT = 0
MAX_LINKS = 40
MAX_REPORTED = 10

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
    """Raises ConfigError with every file of config and plugins that root must not rely on."""
    errors = [*config_faults(settings.path, environ), *plugin_faults(settings, environ)]
    if errors:
        raise ConfigError(errors, settings)


def config_faults(path: Path | None, environ: Mapping[str, str] = os.environ, look: Look = os.lstat) -> list[str]:
    """Return a line for each file or folder by which others can change the config."""
    if path is None or not _is_checked(environ):
        return []
    return _written("config", dict(_faults(path, look)), f"set {VARIABLE}=1 in the environment")


def plugin_faults(settings: Settings, environ: Mapping[str, str] = os.environ, look: Look = os.lstat) -> list[str]:
    """Return a line for each file or folder by which others can change, or add, code of the plugins."""
    if settings.plugins.allow_writable_by_others or not _is_checked(environ):
        return []
    found: dict[Path, str] = {}
    for text in settings.plugins.paths:
        path = path_of(text, settings.base)
        for part in (path, *_importable(path)):
            found.update(_faults(part, look))
    return _written("plugins", found, f"set {KEY}: true")


def open_to_others(files: Iterable[Path]) -> list[str]:
    """Return a warning for each existing file that others may read or write. It may be so on purpose, so nothing is changed."""
    found = []
    for path in files:
        with suppress(OSError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o077:
                found.append(f"{path} (mode {mode:04o}) is open to others: chmod go-rwx {shlex.quote(str(path))}")
    return found


def _written(what: str, faults: Mapping[Path, str], remedy: str) -> list[str]:
    lines = [f"{what}: {fault}, or {remedy}" for fault in faults.values()]
    more = len(lines) - MAX_REPORTED
    return lines if more <= 0 else [*lines[:MAX_REPORTED], f"{what}: ... and {more} more"]


def _is_checked(environ: Mapping[str, str]) -> bool:
    allowed = environ.get(VARIABLE, "")
    if allowed not in ("", "0", "1"):
        raise ConfigError([f"environment variable {VARIABLE}: expected 1 or 0"])
    return os.geteuid() == ROOT and allowed != "1"


def _importable(path: Path) -> Iterator[Path]:
    """The folder of a plugin, and the modules and packages there, all of which it may import."""
    with suppress(OSError):
        if not path.exists():
            return
        folder = path if path.is_dir() and not (path / "__init__.py").is_file() else path.parent
        yield folder
        for entry in sorted(folder.iterdir()):
            yield from _code_in(entry)


def _code_in(entry: Path) -> Iterator[Path]:
    with suppress(OSError):
        if (entry / "__init__.py").is_file():
            yield from _all_in(entry)
            return
    if entry.suffix == ".py":
        yield entry


def _all_in(package: Path) -> Iterator[Path]:
    """Every folder and file of a package, each folder once. Links are followed, as imports do."""
    seen: set[str] = set()
    for inside, folders, files in os.walk(package, followlinks=True):
        real = os.path.realpath(inside)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield Path(inside)
        yield from (Path(inside, file) for file in files)


def _faults(path: Path, look: Look) -> Iterator[tuple[Path, str]]:
    """Nobody may add a file in the folder `path`; in a folder above it others may have files of their own, as in /tmp."""
    *above, last = _way_to(path, look)
    for position, status in above:
        if fault := _fault(position, status, shared=bool(status.st_mode & stat.S_ISVTX)):
            yield position, fault
    if fault := _fault(*last, shared=False):
        yield last[0], fault


def _way_to(path: Path, look: Look) -> Iterator[tuple[Path, os.stat_result]]:
    """The folders and links on the way to `path`, then itself; if something is missing, those before it."""
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
    """`shared` means that who may write here can't change what belongs to root: the folder has the sticky bit."""
    quoted = shlex.quote(str(path))
    if status.st_uid != ROOT:
        link = " -h" if stat.S_ISLNK(status.st_mode) else ""
        return f"{path} belongs to {_user(status.st_uid)}, who can change what root runs: chown{link} root {quoted}"
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


def _user(uid: int) -> str:
    try:
        return f"user {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"user {uid}"
