from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.reports import SourceReport

Put = Callable[..., Path]


HANDLER = "from supervisor import handler\n@handler\ndef {name}(job): return {result!r}\n"


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def put(name: str, text: str | bytes = "") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dedent(text).encode() if isinstance(text, str) else text)
        return path

    return put


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., tuple[PluginManager, dict[str, SourceReport]]]:
    """Load everything in the given directories; reports by file name relative to the folder of the test."""

    def load(*paths: str) -> tuple[PluginManager, dict[str, SourceReport]]:
        manager = PluginManager()
        reports = manager.load_all(discover(paths or ("plugins",), tmp_path))
        return manager, {os.path.relpath(report.source, tmp_path): report for report in reports}

    return load
