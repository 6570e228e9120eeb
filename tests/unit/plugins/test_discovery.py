from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor import Job
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from tests.unit.plugins.conftest import HANDLER, Put


def names(paths: list[str], base: Path) -> list[str]:
    return [os.path.relpath(source.name, base) for source in discover(paths, base)]


def test_a_directory_gives_its_files_and_packages_sorted(put: Put, tmp_path: Path) -> None:
    for name in [
        "b.py",
        "a.py",
        "_x.py",
        ".y.py",
        "notes.txt",
        "pkg/__init__.py",
        "pkg/inner.py",
        "plain/z.py",
        "a.py~",
    ]:
        put(f"plugins/{name}")
    put("plugins/__pycache__/a.py")
    assert names(["plugins"], tmp_path) == ["plugins/a.py", "plugins/b.py", "plugins/pkg"]


def test_a_file_of_a_config_map_is_found_once(put: Put, tmp_path: Path) -> None:
    """Kubernetes keeps the files in a hidden folder, which links lead to."""
    put("plugins/..2030_01_31/a.py")
    (tmp_path / "plugins/..data").symlink_to("..2030_01_31")
    (tmp_path / "plugins/a.py").symlink_to("..data/a.py")
    assert names(["plugins"], tmp_path) == ["plugins/a.py"]


def test_each_source_is_found_once_in_the_order_of_the_config(put: Put, tmp_path: Path) -> None:
    put("one/a.py")
    put("two/pkg/__init__.py")
    put("two/b.py")
    assert names(["two/b.py", "one", "two", "./one/a.py", "two/pkg"], tmp_path) == ["two/b.py", "one/a.py", "two/pkg"]


def test_a_missing_source_is_reported(load: Any) -> None:
    manager = PluginManager()
    reports = manager.load_all(discover(["plugins", "gone/", "x.py", "no_such.module"], Path("/nowhere")))
    assert [report.error for report in reports] == [
        "there is no file or folder /nowhere/plugins, and no module 'plugins' is installed",
        "no such file or folder; plugins.paths has 'gone/'",
        "no such file or folder; plugins.paths has 'x.py'",
        "there is no file or folder /nowhere/no_such.module, and no module 'no_such.module' is installed",
    ]


def test_modules_and_entry_points_are_loaded(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put("lib/installed_one.py", HANDLER.format(name="one", result=1))
    put("lib/installed_two.py", HANDLER.format(name="two", result=2))
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    put("lib/two-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: two\nVersion: 1.0\n")
    put("lib/two-1.0.dist-info/entry_points.txt", "[supervisor]\nextra = installed_two\n")
    manager = PluginManager()
    sources = discover(["installed_one"], tmp_path)
    reports = manager.load_all(sources)
    assert [report.source for report in reports] == ["installed_one", "entry point extra (installed_two)"]
    assert {name: found.function(Job(1, name)) for name, found in manager.handlers.items()} == {"one": 1, "two": 2}
    for name in ("installed_one", "installed_two"):
        sys.modules.pop(name)


def test_an_error_inside_a_module_is_not_taken_for_a_missing_one(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("lib/installed_bad.py", "\nimport no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    report = PluginManager().load(discover(["installed_bad"], tmp_path)[0])
    assert report.error == "ModuleNotFoundError: No module named 'no_such_library'"
    assert report.line == 2


@pytest.mark.parametrize("path", ["~nosuchuser/x", "~nosuchuser"])
def test_a_home_directory_of_an_unknown_user_is_missing(tmp_path: Path, path: str) -> None:
    (source,) = (found for found in discover([path], tmp_path) if found.entry is None)
    assert source.problem == f"no such file or folder; plugins.paths has {path!r}"
    assert source.name == str(tmp_path / path)


def test_sources_that_cannot_be_inspected_are_reported(
    put: Put, load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("plugins/good.py", HANDLER.format(name="good", result=1))
    put("plugins/closed/__init__.py")

    def refuse(self: Path) -> bool:
        if "closed" in self.parts:
            raise PermissionError(13, "Permission denied")
        return is_file(self)

    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", refuse)
    manager, reports = load("plugins", "x" * 300, "plugins/closed")
    assert reports["plugins/closed"].error == "can't be read: Permission denied"
    assert reports["x" * 300].error == "can't be read: File name too long"
    assert list(manager.handlers) == ["good"]
