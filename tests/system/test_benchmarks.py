"""The command that measures, on little work and without peers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.places import ROOT


@pytest.mark.timeout(60)
def test_the_command_measures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    data, markdown = tmp_path / "all.json", tmp_path / "all.md"
    words = ["drain", "postgres", "--quick", "--peers", "none", "--json", str(data), "--markdown", str(markdown)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *words],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    drain, postgres = json.loads(data.read_text())["tables"]
    assert {figure["contender"] for figure in drain["figures"]} == {"supervisor", "bare hot path (yardstick.py)"}
    ours = {"supervisor on PostgreSQL", "2 x supervisor on PostgreSQL, 1 worker each"}
    assert {figure["contender"] for figure in postgres["figures"]} == ours and not postgres["absent"]
    assert all(figure["median"] > 0 for figure in [*drain["figures"], *postgres["figures"]])
    assert "| supervisor | drain |" in markdown.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.json", "all.md"]
