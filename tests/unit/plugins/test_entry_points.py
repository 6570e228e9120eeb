"""The plugins of installed packages are those that `importlib.metadata` finds, which is imported only if there may be one."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import DistributionFinder, PathDistribution
from pathlib import Path
from typing import Any

import pytest

from supervisor.plugins.entry_points import installed_plugins

METADATA = "Metadata-Version: 2.1\nName: kit\nVersion: 1.0\n"
OURS = "[console_scripts]\nkit = kit:main\n\n[supervisor]\nb = kit.b\na = kit.a\n"
OTHERS = "[console_scripts]\nsupervisor = kit:main\n"


def package(folder: Path, entry_points: str, kind: str = "dist-info") -> Path:
    installed = folder / f"kit-1.0.{kind}"
    installed.mkdir(parents=True)
    (installed / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text(METADATA)
    (installed / "entry_points.txt").write_text(entry_points)
    return installed


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The import path: nothing is installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "missing"), str(tmp_path)])
    return sys.path


def values() -> list[str]:
    return [entry.value for entry in installed_plugins()]


@pytest.mark.parametrize("kind", ["dist-info", "egg-info"])
def test_the_entry_points_of_a_package_are_found_and_sorted(path: list[str], tmp_path: Path, kind: str) -> None:
    package(tmp_path, OURS, kind)
    assert values() == ["kit.a", "kit.b"]


def test_a_package_in_the_current_folder_is_found(
    path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path / "here", OURS)
    monkeypatch.chdir(tmp_path / "here")
    path.insert(0, "")
    assert values() == ["kit.a", "kit.b"]


def test_packages_in_a_zip_file_and_in_an_egg_are_found(path: list[str], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "kit.zip", "w") as archive:
        archive.writestr("kit-1.0.dist-info/METADATA", METADATA)
        archive.writestr("kit-1.0.dist-info/entry_points.txt", OURS)
    path.append(str(tmp_path / "kit.zip"))
    assert values() == ["kit.a", "kit.b"]
    egg = tmp_path / "other-1.0.egg"
    (egg / "EGG-INFO").mkdir(parents=True)
    (egg / "EGG-INFO" / "PKG-INFO").write_text(METADATA.replace("kit", "other"))
    (egg / "EGG-INFO" / "entry_points.txt").write_text("[supervisor]\nc = other.c\n")
    path[-1] = str(egg)
    assert values() == ["other.c"]


def test_a_package_that_another_finder_knows_is_found(
    path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder(DistributionFinder):
        def find_distributions(self, context: Any = None) -> Iterator[PathDistribution]:
            yield PathDistribution(package(tmp_path / "elsewhere", OURS))

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert values() == ["kit.a", "kit.b"]


def test_the_slow_import_is_spared_if_no_package_has_a_plugin(
    path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, OTHERS)
    (tmp_path / "bare-1.0.dist-info").mkdir()
    (tmp_path / "file.egg-info").touch()
    monkeypatch.setitem(sys.modules, "importlib.metadata", None)
    assert values() == []
    package(tmp_path / "more", OURS)
    path.append(str(tmp_path / "more"))
    with pytest.raises(ImportError):
        values()
