"""Import plugin files. Each directory is a package of its own, so modules of one name in two directories are kept apart.

A directory `D` becomes the package `supervisor.plugins.importer.<hex of D>`, and `D/mail.py` its module `mail`. In these
modules `import util` and `importlib.import_module("util")` find `D/util.py` first, at any time and inside functions too. Only the standard library comes before,
and a module does not find itself in this way. The name contains the path, so that a process started by a handler
(multiprocessing's spawn or forkserver) can import the module too.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache, wraps
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_PREFIX = re.compile(rf"{re.escape(__name__)}\.[0-9a-f]+\.")

__path__: list[str] = []  # a package without a folder: its subpackages come from the finder below


def import_file(path: Path) -> ModuleType:
    """Return the module of a plugin file, or of a package given by its `__init__.py`. Raises what the import raises."""
    package = path.name == "__init__.py"
    owner = path.parent if package else path
    name = f"{_package_of(owner.parent)}.{owner.stem.replace('.', '_')}"
    if name in sys.modules:
        return sys.modules[name]
    importlib.import_module(name.rpartition(".")[0])
    spec = importlib.util.spec_from_file_location(
        name, path, loader=_Loader(name, str(path)), submodule_search_locations=[str(owner)] if package else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"not a Python file: {path}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def forget(folder: Path) -> None:
    """Remove the modules of this directory from sys.modules, so that the next import reads the files again."""
    package = _package_of(folder)
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


def readable(text: str) -> str:
    """Return `text`, such as a traceback, without the hexadecimal directories in the names of plugin modules."""
    return _PREFIX.sub("", text)


def _package_of(folder: Path) -> str:
    return f"{__name__}.{os.fsencode(folder).hex()}"


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        # Never through __pycache__: the folder may be read-only, and a file replaced within a second must be read again.
        path = self.get_filename(fullname)
        code = self.source_to_code(self.get_data(path), path)
        assert isinstance(code, CodeType)
        return code

    def exec_module(self, module: ModuleType) -> None:
        _scope_imports()
        super().exec_module(module)


class _Scope:
    """A plugin directory, as its modules see it in imports."""

    def __init__(self, folder: str) -> None:
        self.package = f"{__name__}.{folder}"
        self._folder = Path(os.fsdecode(bytes.fromhex(folder)))

    def finds(self, head: str, importer: Mapping[str, Any]) -> bool:
        """Return whether this name, in a module with these globals, is that of a module of the directory."""
        if head in sys.stdlib_module_names or head == "supervisor":
            return False
        if importer["__name__"] == f"{self.package}.{head}" and "__path__" not in importer:  # it does not find itself
            return False
        return f"{self.package}.{head}" in sys.modules or any(
            (self._folder / tail).is_file() for tail in (f"{head}.py", f"{head}/__init__.py")
        )


@cache
def _scope(folder: str) -> _Scope:
    return _Scope(folder)


def _found_by(importer: Mapping[str, Any], name: str) -> _Scope | None:
    """Return the directory of a module with these globals, if `name` is there for it."""
    module = importer.get("__name__")
    if type(module) is not str or not module.startswith(f"{__name__}."):
        return None
    scope = _scope(module[len(__name__) + 1 :].partition(".")[0])
    return scope if scope.finds(name.partition(".")[0], importer) else None


@cache
def _scope_imports() -> None:
    """Replace the functions that import, once, by those which look into the directory of a plugin first.

    They can't be given to the modules of plugins alone: a module that has builtins of its own does not see what is added to the
    others later, as gettext.install does.
    """
    python_import, python_import_module = builtins.__import__, importlib.import_module

    @wraps(python_import)
    def import_(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        importer = globals if globals is not None else sys._getframe(1).f_globals
        if level or (scope := _found_by(importer, name)) is None:
            return python_import(name, globals, locals, fromlist or (), level)
        module = python_import(f"{scope.package}.{name}", globals, locals, fromlist or (), 0)
        return module if fromlist else sys.modules[f"{scope.package}.{name.partition('.')[0]}"]

    @wraps(python_import_module)
    def import_module(name: str, package: str | None = None) -> ModuleType:
        scope = None if name.startswith(".") else _found_by(sys._getframe(1).f_globals, name)
        return python_import_module(name if scope is None else f"{scope.package}.{name}", package)

    builtins.__import__ = import_
    importlib.import_module = import_module


class _Finder:
    """Finds the packages named after directories, and gives every source file below them the loader above."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        tail = fullname.removeprefix(f"{__name__}.")
        if "." not in tail:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [os.fsdecode(bytes.fromhex(tail))]
            return spec
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = _Loader(found.loader.name, found.loader.path)
            found.cached = None
        return found


sys.meta_path.insert(0, _Finder())
