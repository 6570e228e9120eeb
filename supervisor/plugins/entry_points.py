"""Find the plugins of installed packages.

`importlib.metadata` is slow to import, and most installations have no such plugin: it is imported only if a package names one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "supervisor"
_HEADER = f"[{GROUP}]".encode()
_METADATA = (".dist-info", ".egg-info")


def installed_plugins() -> Sequence[EntryPoint]:
    """Return the entry points of the group, sorted."""
    if not (_other_finders() or any(map(_may_name_a_plugin, sys.path))):
        return ()
    from importlib import metadata

    return sorted(metadata.entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))


def _other_finders() -> bool:
    """Return whether packages may be found elsewhere than in the folders of `sys.path`."""
    return any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path)


def _may_name_a_plugin(entry: str) -> bool:
    """Return whether an entry of `sys.path` is no folder, such as a zip file or an egg, or has a package with the group."""
    if entry.endswith(".egg"):
        return True
    try:
        return any(_HEADER in text for text in _entry_points_in(entry or "."))
    except NotADirectoryError:
        return True
    except OSError:  # importlib.metadata finds nothing there
        return False


def _entry_points_in(folder: str) -> Iterator[bytes]:
    """Yield the text of each entry_points.txt."""
    with os.scandir(folder) as entries:
        packages = [entry.path for entry in entries if entry.name.lower().endswith(_METADATA)]
    for package in packages:
        try:
            with open(f"{package}/entry_points.txt", "rb") as file:
                yield file.read()
        except OSError:  # it has none
            continue
