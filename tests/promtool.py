"""Run promtool, the checker of Prometheus, which Debian has in its package `prometheus`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def promtool(*arguments: str, input: str = "", folder: Path | None = None) -> str:
    """Return its output. Fail the test if it finds a mistake; skip the test if it is not installed, but not in CI."""
    program = shutil.which("promtool")
    if program is None:
        assert not os.environ.get("CI"), "promtool is missing: apt-get install prometheus"
        pytest.skip("promtool is not installed")
    ended = subprocess.run([program, *arguments], input=input, cwd=folder, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr
